#include "run.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"

namespace ogds {
namespace {

size_t chunk_bytes(const ChunkShape& shape) noexcept {
    return size_t{shape.n_words} * dtype_of(shape.dtype).container_bytes;
}

bool covers_chunk(std::span<const Segment> segments, const ChunkShape& shape) noexcept {
    return segments.size() == 1 && segments[0].n_words == shape.n_words;
}

// The words of a chunk: where they lie if they are in one piece, else gathered.
std::span<const uint8_t> words_of(std::span<const std::span<const uint8_t>> buffers,
                                  std::span<const Segment> segments, const ChunkShape& shape,
                                  std::span<uint8_t> scratch) noexcept {
    if (covers_chunk(segments, shape)) {
        return buffers[segments[0].buffer].subspan(segments[0].byte_offset, chunk_bytes(shape));
    }
    const size_t word_bytes = dtype_of(shape.dtype).container_bytes;
    for (const Segment& segment : segments) {
        std::memcpy(scratch.data() + segment.word_offset * word_bytes,
                    buffers[segment.buffer].data() + segment.byte_offset,
                    segment.n_words * word_bytes);
    }
    return scratch.first(chunk_bytes(shape));
}

// The segment into which a chunk can be decoded at once, or none.
const Segment* whole_segment(std::span<const Segment> segments, const ChunkShape& shape) noexcept {
    for (const Segment& segment : segments) {
        if (segment.rule == kAsStored && segment.n_words == shape.n_words) {
            return &segment;
        }
    }
    return nullptr;
}

void fill(const Segment& segment, std::span<const uint8_t> words, size_t word_bytes,
          std::span<const std::span<uint8_t>> buffers) noexcept {
    const uint8_t* from = words.data() + segment.word_offset * word_bytes;
    uint8_t* to = buffers[segment.buffer].data() + segment.byte_offset;
    if (segment.rule == kRounded) {
        round_words(from, segment.n_words, to);
    } else {
        std::memmove(to, from, segment.n_words * word_bytes);  // a caller may ask twice
    }
}

// Decodes the frames of a chunk from the oldest on, each from the words of the one before it, into
// `words`. Without frames `base` has no words.
Status decode_chain(std::span<const BaseLink> bases, size_t row, const ChunkShape& shape,
                    std::span<uint8_t> words, Workspace& workspace, Base& base,
                    size_t& link) noexcept {
    base = {};
    for (link = 0; link < bases.size(); ++link) {
        const uint8_t* record = bases[link].records + row * kIndexRecordBytes;
        if (record_is_absent(record)) {
            continue;
        }
        if (const Status status =
                decode_link(bases[link].frames, bases[link].start, record, shape, words,
                            workspace, base);
            status != Status::kOk) {
            return status;
        }
    }
    return Status::kOk;
}

// Bases whose frames are in memory.
class ReadBases final : public BaseSource {
public:
    ReadBases(std::span<const RunChunk> chunks, std::span<const BaseLink> links,
              std::span<uint8_t> scratch, Workspace& workspace) noexcept
        : chunks_(chunks), links_(links), scratch_(scratch), workspace_(workspace) {}

    RunResult find(size_t chunk, Base& base) noexcept override {
        const ChunkShape& shape = chunks_[chunk].shape;
        size_t link = 0;
        const Status status = decode_chain(links_, chunk, shape, scratch_.last(chunk_bytes(shape)),
                                           workspace_, base, link);
        return status == Status::kOk ? RunResult{} : RunResult{status, chunk, 0, link};
    }

private:
    const std::span<const RunChunk> chunks_;
    const std::span<const BaseLink> links_;
    const std::span<uint8_t> scratch_;
    Workspace& workspace_;
};

Status decode_chunk(std::span<const uint8_t> frame, const FrameHeader& header,
                    const ChunkShape& shape, std::span<const std::span<uint8_t>> buffers,
                    std::span<const Segment> segments, std::span<uint8_t> scratch,
                    Workspace& workspace, std::span<const BaseLink> bases,
                    size_t row) noexcept {
    const bool is_delta = (header.flags & kFlagDelta) != 0;
    Base base;
    size_t link = 0;
    if (segments.empty()) {
        if (is_delta && !bases.empty()) {
            if (const Status status = decode_chain(
                    bases, row, shape, scratch.first(chunk_bytes(shape)), workspace, base, link);
                status != Status::kOk) {
                return status;
            }
        }
        return decode_frame(frame, header, {}, workspace, base);
    }
    const Segment* const whole = whole_segment(segments, shape);
    const std::span<uint8_t> words =
        whole == nullptr ? scratch.first(chunk_bytes(shape))
                         : buffers[whole->buffer].subspan(whole->byte_offset, chunk_bytes(shape));
    if (is_delta) {
        // The base stays in the caches, the words that come of it go past them.
        if (const Status status = decode_chain(bases, row, shape, scratch.first(chunk_bytes(shape)),
                                               workspace, base, link);
            status != Status::kOk) {
            return status;
        }
    }
    if (const Status status = decode_frame(frame, header, words, workspace, base);
        status != Status::kOk) {
        return status;
    }
    const size_t word_bytes = dtype_of(shape.dtype).container_bytes;
    for (const Segment& segment : segments) {
        if (&segment != whole) {
            fill(segment, words, word_bytes, buffers);
        }
    }
    return Status::kOk;
}

}  // namespace

size_t scratch_bytes(std::span<const RunChunk> chunks, bool has_bases) noexcept {
    size_t most = 0;
    for (const RunChunk& chunk : chunks) {
        most = std::max(most, chunk_bytes(chunk.shape));
    }
    return has_bases ? 2 * most : most;
}

size_t max_run_bytes(std::span<const RunChunk> chunks, size_t align_bytes) noexcept {
    size_t total = align_bytes;
    for (const RunChunk& chunk : chunks) {
        total += max_frame_bytes(chunk.shape.n_words, dtype_of(chunk.shape.dtype));
    }
    return total;
}

RunResult encode_run(std::span<const std::span<const uint8_t>> buffers,
                     std::span<const Segment> segments, std::span<const RunChunk> chunks,
                     const EncodeOptions& options, size_t align_bytes, std::span<uint8_t> out,
                     uint8_t* records, std::span<uint8_t> scratch, Workspace& workspace,
                     BaseSource* bases) noexcept {
    size_t at = 0;
    for (size_t i = 0; i < chunks.size(); ++i) {
        const RunChunk& chunk = chunks[i];
        const std::span<const uint8_t> words =
            words_of(buffers, segments.first(chunk.n_segments), chunk.shape, scratch);
        segments = segments.subspan(chunk.n_segments);
        FrameHeader header;
        Base base;
        if (bases != nullptr) {
            if (const RunResult found = bases->find(i, base); found.status != Status::kOk) {
                return found;
            }
        }
        Status status =
            encode_frame(words, chunk.shape, options, out.subspan(at), workspace, header, base);
        if (status == Status::kOk && bases != nullptr && base.words == nullptr) {
            if (const RunResult found = bases->find_alike(i, header, base);
                found.status != Status::kOk) {
                return found;
            }
            if (base.words != nullptr) {
                status = encode_frame(words, chunk.shape, options, out.subspan(at), workspace,
                                      header, base);
            }
        }
        if (status == Status::kOk && i + 1 == chunks.size()) {
            const size_t end = align_up(at + header.frame_bytes, align_bytes);
            status = lengthen_frame(out.subspan(at), end - at, header);
        }
        if (status != Status::kOk) {
            return {status, i, at};
        }
        write_index_record(header, at, records + i * kIndexRecordBytes);
        at += header.frame_bytes;
    }
    return {Status::kOk, 0, at};
}

RunResult encode_run(std::span<const std::span<const uint8_t>> buffers,
                     std::span<const Segment> segments, std::span<const RunChunk> chunks,
                     const EncodeOptions& options, size_t align_bytes, std::span<uint8_t> out,
                     uint8_t* records, std::span<uint8_t> scratch, Workspace& workspace,
                     std::span<const BaseLink> bases) noexcept {
    ReadBases read(chunks, bases, scratch, workspace);
    return encode_run(buffers, segments, chunks, options, align_bytes, out, records, scratch,
                      workspace, bases.empty() ? nullptr : &read);
}

RunResult decode_run(std::span<const uint8_t> frames, const uint8_t* records,
                     std::span<const RunChunk> chunks, std::span<const std::span<uint8_t>> buffers,
                     std::span<const Segment> segments, std::span<uint8_t> scratch,
                     Workspace& workspace, std::span<const BaseLink> bases,
                     uint64_t start) noexcept {
    for (size_t i = 0; i < chunks.size(); ++i) {
        const RunChunk& chunk = chunks[i];
        std::span<const uint8_t> frame;
        FrameHeader header;
        Status status =
            find_frame(frames, start, records + i * kIndexRecordBytes, chunk.shape, frame, header);
        if (status == Status::kOk) {
            status = decode_chunk(frame, header, chunk.shape, buffers,
                                  segments.first(chunk.n_segments), scratch, workspace, bases, i);
        }
        if (status != Status::kOk) {
            return {status, i, 0};
        }
        segments = segments.subspan(chunk.n_segments);
    }
    return {};
}

}  // namespace ogds
