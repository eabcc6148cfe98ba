// A run: several chunks coded by one call. Arguments are checked by the caller (arguments.h).
#pragma once

#include <cstdint>
#include <span>

#include "chain.h"
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

// Where a run ended: `chunk` is the index in the call of the chunk at fault, or whose base is.
struct RunResult {
    static constexpr size_t kNoLink = ~size_t{0};

    Status status = Status::kOk;
    size_t chunk = 0;
    size_t n_bytes = 0;
    size_t link = kNoLink;  // of the bases, if it is at fault
    int error = 0;          // of the system, if that refused to read
};

// What the chunks of a run are coded against.
class BaseSource {
public:
    // Called for each chunk, in order. A chunk without a base leaves `base` without words; others
    // stay until the next call.
    virtual RunResult find(size_t chunk, Base& base) noexcept = 0;

    // Called when a chunk without a base was coded: says what its base is after all, if it has one
    // and its frame shows that the words may all be those of that.
    virtual RunResult find_alike(size_t, const FrameHeader&, Base& base) noexcept {
        base = {};
        return {};
    }

protected:
    ~BaseSource() = default;
};

// What a run needs for one chunk: its words if they are not in one piece, those of its base.
size_t scratch_bytes(std::span<const RunChunk> chunks, bool has_bases = false) noexcept;

// Room that encode_run needs in `out`.
size_t max_run_bytes(std::span<const RunChunk> chunks, size_t align_bytes) noexcept;

// Codes the chunks end to end into `out`; n_bytes is a multiple of align_bytes. A chunk with a base
// is coded as a delta where that is smaller.
RunResult encode_run(std::span<const std::span<const uint8_t>> buffers,
                     std::span<const Segment> segments, std::span<const RunChunk> chunks,
                     const EncodeOptions& options, size_t align_bytes, std::span<uint8_t> out,
                     uint8_t* records, std::span<uint8_t> scratch, Workspace& workspace,
                     BaseSource* bases = nullptr) noexcept;

// The same; the base of a chunk is what its frames in `bases`, from the oldest on, come to.
RunResult encode_run(std::span<const std::span<const uint8_t>> buffers,
                     std::span<const Segment> segments, std::span<const RunChunk> chunks,
                     const EncodeOptions& options, size_t align_bytes, std::span<uint8_t> out,
                     uint8_t* records, std::span<uint8_t> scratch, Workspace& workspace,
                     std::span<const BaseLink> bases) noexcept;

// Decodes the frames that `records` point at in `frames` into the segments of their chunks; a chunk
// without segments is checked only. Where the destinations of segments overlap, what their common
// bytes are is not said. `bases` are the links of the chains of the frames that are deltas, from the
// oldest on. Offsets of records count from `start`, at the front of `frames`.
RunResult decode_run(std::span<const uint8_t> frames, const uint8_t* records,
                     std::span<const RunChunk> chunks, std::span<const std::span<uint8_t>> buffers,
                     std::span<const Segment> segments, std::span<uint8_t> scratch,
                     Workspace& workspace, std::span<const BaseLink> bases = {},
                     uint64_t start = 0) noexcept;

}  // namespace ogds
