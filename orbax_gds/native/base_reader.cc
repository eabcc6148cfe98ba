#include "base_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bytes.h"
#include "chain.h"
#include "isa.h"

namespace ogds {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPageBytes = 4096;  // what files opened for direct reading want
// Chosen: words decoded, and frames read, at a time, where no chunk is longer.
constexpr size_t kTogetherBytes = size_t{1} << 20;
constexpr size_t kMostZeroBytes = size_t{64} << 10;  // chosen: behind the payload of a frame
constexpr uint64_t kMostGapBytes = 16 << 10;  // chosen: read with the frames on both sides of it
constexpr size_t kLengthAt = 8;  // required: in a record, of its frame
constexpr size_t kWordsAt = 12;  // required: in a record, number of words and all that follows it
constexpr size_t kCrcAt = 20;
constexpr size_t kUnchangedBytes = 6;  // required: FORMAT 7.11, where every word is the base's
constexpr uint64_t kMostOffset = uint64_t{1} << 62;

size_t words_bytes(const RunChunk& chunk) noexcept {
    return size_t{chunk.shape.n_words} * dtype_of(chunk.shape.dtype).container_bytes;
}

// What there is room for; a frame that its writer lengthened by more is no base.
size_t most_frame_bytes(const RunChunk& chunk) noexcept {
    return max_frame_bytes(chunk.shape.n_words, dtype_of(chunk.shape.dtype)) + kMostZeroBytes;
}

// Of frames as long as may be; reading others fails.
bool is_too_long(const uint8_t* record, const RunChunk& chunk) noexcept {
    const size_t frame_bytes = load_u32le(record + kLengthAt);
    return frame_bytes > most_frame_bytes(chunk) && frame_bytes <= kMaxFrameBytes;
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

BaseReader::BaseReader(std::span<const RunChunk> chunks, const RunLinks& links,
                       std::span<uint8_t> scratch, Workspace& workspace,
                       const std::atomic<bool>& is_stopped) noexcept
    : chunks_(chunks), links_(links.links), only_if_alike_(links.only_if_alike),
      workspace_(workspace), is_stopped_(is_stopped) {
    const size_t past_page = reinterpret_cast<uintptr_t>(scratch.data()) % kPageBytes;
    const std::span<uint8_t> pages = scratch.subspan((kPageBytes - past_page) % kPageBytes);
    words_ = pages.first(words_room(chunks));
    frames_ = pages.subspan(words_.size(), frames_room(chunks));
}

RunResult BaseReader::find(size_t chunk, Base& base) noexcept {
    base = {};
    if (is_left_out(chunk)) {
        return {};
    }
    if (chunk >= end_) {
        size_t end = chunk + 1;
        while (end < chunks_.size() && !is_left_out(end)) {
            ++end;
        }
        if (const RunResult loaded = load(chunk, end); loaded.status != Status::kOk) {
            return loaded;
        }
    }
    base = bases_[chunk - first_];
    return {};
}

RunResult BaseReader::find_alike(size_t chunk, const FrameHeader& coded, Base& base) noexcept {
    base = {};
    if (!is_left_out(chunk) || !may_equal_base(chunk, coded)) {
        return {};
    }
    const RunResult loaded = load(chunk, chunk + 1);
    if (loaded.status == Status::kOk) {
        base = bases_[0];
    }
    return loaded;
}

const uint8_t* BaseReader::record_of(size_t link, size_t chunk) const noexcept {
    return links_[link].records + chunk * kIndexRecordBytes;
}

bool BaseReader::is_left_out(size_t chunk) const noexcept {
    if (!only_if_alike_.empty() && only_if_alike_[chunk] != 0) {
        return true;
    }
    for (size_t link = 0; link < links_.size(); ++link) {
        if (is_too_long(record_of(link, chunk), chunks_[chunk])) {
            return true;
        }
    }
    return false;
}

// Whether the frame, lengthened alike, is that of the oldest link, and those since say that nothing
// has changed.
bool BaseReader::may_equal_base(size_t chunk, const FrameHeader& coded) noexcept {
    bool is_found = false;
    for (size_t link = 0; link < links_.size(); ++link) {
        const uint8_t* const record = record_of(link, chunk);
        if (record_is_absent(record)) {
            continue;
        }
        if (is_too_long(record, chunks_[chunk])) {
            return false;
        }
        uint8_t alike[kIndexRecordBytes];
        FrameHeader expected = coded;
        const size_t n_zeros = load_u32le(record + kLengthAt) - size_t{coded.frame_bytes};
        if (!is_found && n_zeros <= kMostZeroBytes) {
            std::memset(frames_.data(), 0, n_zeros);
            expected.payload_crc =
                kernels().crc32c(frames_.data(), n_zeros, expected.payload_crc);
        } else if (is_found) {
            expected.codec = Codec::kDelta;
            expected.flags = kFlagDelta;
            expected.payload_bytes = kUnchangedBytes;
            expected.payload_crc = load_u32le(record + kCrcAt);
        }
        write_index_record(expected, 0, alike);
        if (std::memcmp(record + kWordsAt, alike + kWordsAt, sizeof alike - kWordsAt) != 0) {
            return false;
        }
        is_found = true;
    }
    return is_found;
}

// Decodes the bases of as many chunks as go together, at least one and none from `end` on.
RunResult BaseReader::load(size_t first, size_t end) noexcept {
    const Clock::time_point began = Clock::now();
    first_ = first;
    end_ = first;
    for (size_t left = words_.size();
         end_ < end && end_ - first < kMostChunks && words_bytes(chunks_[end_]) <= left; ++end_) {
        left -= words_bytes(chunks_[end_]);
        bases_[end_ - first] = {};
    }
    RunResult loaded;
    for (size_t link = 0; link < links_.size() && loaded.status == Status::kOk; ++link) {
        loaded = load_link(link);
    }
    whole_time_ += Clock::now() - began;
    return loaded;
}

RunResult BaseReader::load_link(size_t link) noexcept {
    std::span<uint8_t> left = words_;
    Piece piece = {0, 0, first_};
    for (size_t chunk = first_; chunk < end_; ++chunk) {
        const std::span<uint8_t> words = left.first(words_bytes(chunks_[chunk]));
        left = left.subspan(words.size());
        const uint8_t* const record = record_of(link, chunk);
        if (record_is_absent(record)) {
            continue;
        }
        Status status = Status::kOk;
        if (chunk >= piece.end_chunk) {
            status = find_piece(links_[link].records, chunk, piece);
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
        const uint64_t frame_bytes = load_u32le(record + kLengthAt);
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
    size_t got = 0;
    for (size_t at = 0; got < needed;) {
        if (is_stopped_.load(std::memory_order_relaxed)) {
            return Status::kStopped;
        }
        const ssize_t n = pread(descriptor, frames_.data() + at, wanted - at,
                                static_cast<off_t>(piece.start + at));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EINVAL && at % kPageBytes != 0) {
            at = page_of(at);  // from where a file opened for direct reading is read on
            continue;
        }
        if (n < 0) {
            error_ = errno;
            return Status::kBaseUnread;
        }
        at += static_cast<size_t>(n);
        if (at <= got) {
            piece.end = piece.start + got;
            break;
        }
        got = at;
    }
    return Status::kOk;
}

}  // namespace ogds
