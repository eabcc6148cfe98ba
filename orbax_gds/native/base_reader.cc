#include "base_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "bytes.h"
#include "chain.h"

namespace ogds {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPageBytes = 4096;  // what files opened for direct reading want
// Chosen: words decoded, and frames read, at a time, where no chunk is longer.
constexpr size_t kTogetherBytes = size_t{1} << 20;
constexpr size_t kMostZeroBytes = size_t{64} << 10;  // chosen: behind the payload of a frame
constexpr uint64_t kMostGapBytes = 16 << 10;  // chosen: read with the frames on both sides of it
constexpr uint64_t kMostOffset = uint64_t{1} << 62;

size_t words_bytes(const RunChunk& chunk) noexcept {
    return size_t{chunk.shape.n_words} * dtype_of(chunk.shape.dtype).container_bytes;
}

// No frame of a base is longer, unless its writer lengthened it without need.
size_t most_frame_bytes(const RunChunk& chunk) noexcept {
    return max_frame_bytes(chunk.shape.n_words, dtype_of(chunk.shape.dtype)) + kMostZeroBytes;
}

size_t words_room(std::span<const RunChunk> chunks) noexcept {
    size_t most = kTogetherBytes;
    for (const RunChunk& chunk : chunks) {
        most = std::max(most, words_bytes(chunk));
    }
    return align_up(most, kPageBytes);
}

size_t frames_room(std::span<const RunChunk> chunks) noexcept {
    size_t most = kTogetherBytes + kMostZeroBytes;
    for (const RunChunk& chunk : chunks) {
        most = std::max(most, most_frame_bytes(chunk));
    }
    return align_up(most, kPageBytes) + 2 * kPageBytes;  // it may begin and end inside pages
}

uint64_t page_of(uint64_t offset) noexcept { return offset / kPageBytes * kPageBytes; }

}  // namespace

size_t BaseReader::scratch_bytes(std::span<const RunChunk> chunks) noexcept {
    return kPageBytes + words_room(chunks) + frames_room(chunks);
}

BaseReader::BaseReader(std::span<const RunChunk> chunks, std::span<const FileLink> links,
                       std::span<uint8_t> scratch, Workspace& workspace,
                       const std::atomic<bool>& is_stopped) noexcept
    : chunks_(chunks), links_(links), workspace_(workspace), is_stopped_(is_stopped) {
    const size_t past_page = reinterpret_cast<uintptr_t>(scratch.data()) % kPageBytes;
    const std::span<uint8_t> pages = scratch.subspan((kPageBytes - past_page) % kPageBytes);
    words_ = pages.first(words_room(chunks));
    frames_ = pages.subspan(words_.size(), frames_room(chunks));
}

RunResult BaseReader::find(size_t chunk, Base& base) noexcept {
    if (chunk >= end_) {
        const Clock::time_point began = Clock::now();
        const RunResult loaded = load(chunk);
        whole_time_ += Clock::now() - began;
        if (loaded.status != Status::kOk) {
            return loaded;
        }
    }
    base = bases_[chunk - first_];
    return {};
}

// Decodes the bases of as many chunks as go together, at least one.
RunResult BaseReader::load(size_t first) noexcept {
    first_ = first;
    end_ = first;
    for (size_t left = words_.size();
         end_ < chunks_.size() && end_ - first < kMostChunks && words_bytes(chunks_[end_]) <= left;
         ++end_) {
        left -= words_bytes(chunks_[end_]);
        bases_[end_ - first] = {};
    }
    for (size_t link = 0; link < links_.size(); ++link) {
        const RunResult loaded = load_link(link);
        if (loaded.status != Status::kOk) {
            return loaded;
        }
    }
    return {};
}

RunResult BaseReader::load_link(size_t link) noexcept {
    const uint8_t* const records = links_[link].records;
    std::span<uint8_t> left = words_;
    Piece piece = {0, 0, first_};
    for (size_t chunk = first_; chunk < end_; ++chunk) {
        const std::span<uint8_t> words = left.first(words_bytes(chunks_[chunk]));
        left = left.subspan(words.size());
        const uint8_t* const record = records + chunk * kIndexRecordBytes;
        if (record_is_absent(record)) {
            continue;
        }
        Status status = Status::kOk;
        if (chunk >= piece.end_chunk) {
            status = find_piece(records, chunk, piece);
            if (status == Status::kOk) {
                const Clock::time_point began = Clock::now();
                status = read(links_[link].descriptor, piece);
                read_time_ += Clock::now() - began;
            }
        }
        if (status == Status::kOk) {
            status = decode_link(frames_.first(piece.end - piece.start), piece.start, record,
                                 chunks_[chunk].shape, words, workspace_,
                                 bases_[chunk - first_]);
        }
        if (status != Status::kOk) {
            return {status, chunk, 0, link, error_};
        }
    }
    return {};
}

// What to read at once, beginning with the frame of a chunk.
Status BaseReader::find_piece(const uint8_t* records, size_t first, Piece& piece) const noexcept {
    piece = {0, 0, first};
    for (; piece.end_chunk < end_; ++piece.end_chunk) {
        const uint8_t* const record = records + piece.end_chunk * kIndexRecordBytes;
        if (record_is_absent(record)) {
            continue;
        }
        const uint64_t offset = load_u64le(record);
        const uint64_t frame_bytes = load_u32le(record + 8);
        const bool fits = offset <= kMostOffset &&
                          frame_bytes <= most_frame_bytes(chunks_[piece.end_chunk]);
        if (piece.end_chunk == first) {
            if (!fits) {
                return offset > kMostOffset ? Status::kFrameTruncated : Status::kFrameLength;
            }
            piece.start = page_of(offset);
        } else if (!fits || offset < piece.end || offset - piece.end > kMostGapBytes ||
                   align_up(offset + frame_bytes, kPageBytes) - piece.start > frames_.size()) {
            break;
        }
        piece.end = offset + frame_bytes;
    }
    return Status::kOk;
}

// Reads the frames of a piece, and shortens it where the file ends.
Status BaseReader::read(int descriptor, Piece& piece) noexcept {
    const size_t needed = piece.end - piece.start;
    const size_t wanted = align_up(needed, kPageBytes);
    for (size_t done = 0; done < needed;) {
        if (is_stopped_.load(std::memory_order_relaxed)) {
            return Status::kStopped;
        }
        const ssize_t n = pread(descriptor, frames_.data() + done, wanted - done,
                                static_cast<off_t>(piece.start + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            error_ = errno;
            return Status::kBaseUnread;
        }
        const size_t got = done + static_cast<size_t>(n);
        // A file read directly is read on from a page, and only at its end is less than one read.
        const size_t on = got >= needed ? got : page_of(got);
        if (on == done) {
            piece.end = piece.start + got;
            return Status::kOk;
        }
        done = on;
    }
    return Status::kOk;
}

}  // namespace ogds
