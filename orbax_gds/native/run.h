// A run: several chunks coded by one call. Arguments are checked by the caller (arguments.h).
#pragma once

#include <cstdint>
#include <span>

#include "derive.h"
#include "frame.h"

namespace ogds {

// What a segment's words are: those of the chunk, or bfloat16 words rounded from its float32 words.
constexpr uint64_t kAsStored = 0;
constexpr uint64_t kRounded = static_cast<uint64_t>(Rule::kRound);

// A piece of a chunk in one of the caller's buffers.
struct Segment {
    uint64_t buffer;
    uint64_t byte_offset;
    uint64_t word_offset;  // in the chunk
    uint64_t n_words;
    uint64_t rule = kAsStored;
};

struct RunChunk {
    ChunkShape shape;
    uint32_t n_segments;
};

// Where a run ended: `chunk` is the index in the call of the chunk at fault.
struct RunResult {
    Status status = Status::kOk;
    size_t chunk = 0;
    size_t n_bytes = 0;
};

// Frames of the bases of a run's chunks, all of one step: one link of their chains. A record of
// zeros is that of a chunk without a frame in it.
struct BaseLink {
    std::span<const uint8_t> frames;
    const uint8_t* records;
};

// What a run needs for one chunk: its words if they are not in one piece, those of its base.
size_t scratch_bytes(std::span<const RunChunk> chunks, bool has_bases = false) noexcept;

// Room that encode_run needs in `out`.
size_t max_run_bytes(std::span<const RunChunk> chunks, size_t align_bytes) noexcept;

// Codes the chunks end to end into `out`; n_bytes is a multiple of align_bytes. A chunk with frames
// in `bases`, from the oldest on, is coded as a delta against the words of the last where that is
// smaller.
RunResult encode_run(std::span<const std::span<const uint8_t>> buffers,
                     std::span<const Segment> segments, std::span<const RunChunk> chunks,
                     const EncodeOptions& options, size_t align_bytes, std::span<uint8_t> out,
                     uint8_t* records, std::span<uint8_t> scratch, Workspace& workspace,
                     std::span<const BaseLink> bases = {}) noexcept;

// Decodes the frames that `records` point at in `frames` into the segments of their chunks; a chunk
// without segments is checked only. Where the destinations of segments overlap, what their common
// bytes are is not said. `bases` are as in encode_run.
RunResult decode_run(std::span<const uint8_t> frames, const uint8_t* records,
                     std::span<const RunChunk> chunks, std::span<const std::span<uint8_t>> buffers,
                     std::span<const Segment> segments, std::span<uint8_t> scratch,
                     Workspace& workspace, std::span<const BaseLink> bases = {}) noexcept;

}  // namespace ogds
