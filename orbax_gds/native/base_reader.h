// The words of the bases of a run's chunks, read from the files of their chain and decoded.
#pragma once

#include <atomic>
#include <chrono>
#include <span>

#include "run.h"

namespace ogds {

// One link of the chains of a run's chunks: a file, and a record a chunk with the offset of its
// frame in that file; zeros where it has none. A chunk has none, either, if a frame was lengthened
// by more than there is room for.
struct FileLink {
    int descriptor;
    const uint8_t* records;
};

// What a run is coded against: links from the oldest on, and a byte a chunk, or nothing. Where that
// is not zero, the chunk has its base only if its own frame, without one, comes out as that of the
// oldest link: so unchanged words are found of which no base would be worth reading.
struct RunLinks {
    std::span<const FileLink> links;
    std::span<const uint8_t> only_if_alike;

    bool empty() const noexcept { return links.empty(); }
};

// Reads and decodes some chunks at a time, as many as the caches hold, one link after another: what
// it needs of memory depends on the longest chunk and not on the length of the chain.
class BaseReader final : public BaseSource {
public:
    // Memory for the bases of these chunks.
    static size_t scratch_bytes(std::span<const RunChunk> chunks) noexcept;

    // Reading ends soon when `is_stopped` is set.
    BaseReader(std::span<const RunChunk> chunks, const RunLinks& links,
               std::span<uint8_t> scratch, Workspace& workspace,
               const std::atomic<bool>& is_stopped) noexcept;

    RunResult find(size_t chunk, Base& base) noexcept override;
    RunResult find_alike(size_t chunk, const FrameHeader& coded, Base& base) noexcept override;

    std::chrono::nanoseconds read_time() const noexcept { return read_time_; }
    std::chrono::nanoseconds decode_time() const noexcept { return whole_time_ - read_time_; }

private:
    static constexpr size_t kMostChunks = 256;  // chosen: at a time

    // Frames of one link that lie together, of chunks from one on to before another.
    struct Piece {
        uint64_t start;
        uint64_t end;
        size_t end_chunk;
    };

    const uint8_t* record_of(size_t link, size_t chunk) const noexcept;
    bool is_left_out(size_t chunk) const noexcept;
    bool may_equal_base(size_t chunk, const FrameHeader& coded) noexcept;
    RunResult load(size_t first, size_t end) noexcept;
    RunResult load_link(size_t link) noexcept;
    Status find_piece(const uint8_t* records, size_t first, Piece& piece) const noexcept;
    Status read(int descriptor, Piece& piece) noexcept;

    const std::span<const RunChunk> chunks_;
    const std::span<const FileLink> links_;
    const std::span<const uint8_t> only_if_alike_;
    Workspace& workspace_;
    const std::atomic<bool>& is_stopped_;
    std::span<uint8_t> words_;
    std::span<uint8_t> frames_;
    size_t first_ = 0;  // of the chunks whose bases are decoded
    size_t end_ = 0;
    Base bases_[kMostChunks];
    int error_ = 0;
    std::chrono::nanoseconds whole_time_{};
    std::chrono::nanoseconds read_time_{};
};

}  // namespace ogds
