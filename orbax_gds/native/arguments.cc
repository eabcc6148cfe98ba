#include "arguments.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace nb = nanobind;

namespace ogds {

Buffer::Buffer(nb::handle object, const char* name, Access access) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND | PyBUF_FORMAT) != 0) {
        nb::python_error cause;
        nb::raise_from(cause, PyExc_ValueError, "%s must export a contiguous buffer.", name);
    }
    if (access == Access::kWrite && view_.readonly != 0) {
        PyBuffer_Release(&view_);
        refuse(name, " is read-only; a writable buffer is needed.");
    }
}

Buffer::~Buffer() { PyBuffer_Release(&view_); }

bool Buffer::has_unsigned(size_t item_bytes) const noexcept {
    const char* kind = view_.format == nullptr ? "B" : view_.format;
    if (*kind == '@' || *kind == '=' || *kind == '<') {
        ++kind;
    }
    return std::strlen(kind) == 1 && std::strchr("BHILQ", *kind) != nullptr &&
           static_cast<size_t>(view_.itemsize) == item_bytes;
}

size_t Buffer::words(const char* name, const Dtype& dtype) const {
    const size_t word_bytes = dtype.container_bytes;
    if (!has_unsigned(word_bytes)) {
        refuse(name, " must be an array of uint", 8 * word_bytes, ", not of format '",
               view_.format == nullptr ? "B" : view_.format, "'.");
    }
    return bytes().size() / word_bytes;
}

size_t Buffer::rows(const char* name, size_t n_columns, size_t item_bytes) const {
    const auto has = [&](int dimension, size_t extent) {
        return static_cast<size_t>(view_.shape[dimension]) == extent;
    };
    if (view_.ndim != 2 || !has(1, n_columns) || !has_unsigned(item_bytes)) {
        refuse(name, " must be a C-contiguous array of uint", 8 * item_bytes, " of shape [n, ",
               n_columns, "].");
    }
    return static_cast<size_t>(view_.shape[0]);
}

void require_apart(const Buffer& written, const char* written_name, const Buffer& read,
                   const char* read_name) {
    const std::span<const uint8_t> a = written.bytes();
    const std::span<const uint8_t> b = read.bytes();
    const std::less<const uint8_t*> before;
    if (!a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
        before(b.data(), a.data() + a.size())) {
        refuse(written_name, " shares memory with ", read_name, "; they must be apart.");
    }
}

RunArguments::RunArguments(nb::sequence buffers, nb::handle segments, nb::handle chunks,
                           Buffer::Access access, bool has_segments) {
    for (nb::handle object : buffers) {
        const std::string name = "buffer " + std::to_string(held_.size());
        held_.emplace_back(object, name.c_str(), access);
        spans_.push_back(held_.back().bytes());
        readable_.push_back(held_.back().bytes());
    }
    read_segments(segments, access);
    if (!has_segments && !segments_.empty()) {
        refuse("check_only keeps no words, but there are ", segments_.size(), " segments.");
    }

    const Buffer chunk_rows(chunks, "chunks", Buffer::Access::kRead);
    const size_t n_columns = access == Buffer::Access::kRead ? 5 : 4;
    chunks_.resize(chunk_rows.rows("chunks", n_columns, sizeof(uint32_t)));
    std::span<const Segment> left = segments_;
    for (size_t i = 0; i < chunks_.size(); ++i) {
        uint32_t row[5] = {};
        const size_t row_bytes = n_columns * sizeof row[0];
        std::memcpy(row, chunk_rows.bytes().data() + i * row_bytes, row_bytes);
        row[3] = has_segments ? row[3] : 0;
        if (row[2] > 255 || dtype_of(static_cast<uint8_t>(row[2])).bits == 0) {
            refuse("chunks[", i, "] has dtype ", row[2], ", which is no id of FORMAT §5.");
        }
        if (row[1] == 0 || row[1] > kMaxChunkWords) {
            refuse("chunks[", i, "] has ", row[1], " words; 1 to ", kMaxChunkWords,
                   " are possible.");
        }
        if (row[3] > left.size()) {
            refuse("chunks[", i, "] has ", row[3], " segments, but only ", left.size(),
                   " of the ", segments_.size(), " are left.");
        }
        if (row[4] > row[1]) {
            refuse("chunks[", i, "] has ", row[4], " columns, but only ", row[1], " words.");
        }
        chunks_[i] = {{row[0], row[1], static_cast<uint8_t>(row[2]), row[4]}, row[3]};
        check_chunk(i, left.first(row[3]));
        left = left.subspan(row[3]);
    }
    if (!left.empty()) {
        refuse("The chunks name ", segments_.size() - left.size(), " segments, but there are ",
               segments_.size(), ".");
    }
}

void RunArguments::read_segments(nb::handle segments, Buffer::Access access) {
    const size_t n_columns = access == Buffer::Access::kWrite ? 5 : 4;
    const Buffer rows(segments, "segments", Buffer::Access::kRead);
    segments_.resize(rows.rows("segments", n_columns, sizeof(uint64_t)));
    static_assert(sizeof(Segment) == 5 * sizeof(uint64_t));
    for (size_t i = 0; i < segments_.size(); ++i) {
        const size_t row_bytes = n_columns * sizeof(uint64_t);
        std::memcpy(&segments_[i], rows.bytes().data() + i * row_bytes, row_bytes);
    }
}

void RunArguments::check_chunk(size_t i, std::span<const Segment> segments) const {
    const ChunkShape& shape = chunks_[i].shape;
    for (const Segment& segment : segments) {
        const bool is_rounded = segment.rule == kRounded && shape.dtype == kRoundFrom;
        if (segment.rule != kAsStored && !is_rounded) {
            refuse("A segment of chunks[", i, "] of dtype ", shape.dtype, " has rule ",
                   segment.rule, "; 0 is possible, and 2 where the dtype is float32.");
        }
        const size_t word_bytes =
            is_rounded ? kRoundToBytes : dtype_of(shape.dtype).container_bytes;
        if (segment.buffer >= spans_.size()) {
            refuse("A segment of chunks[", i, "] names buffer ", segment.buffer, " of ",
                   spans_.size(), ".");
        }
        if (segment.n_words > shape.n_words ||
            segment.word_offset > shape.n_words - segment.n_words) {
            refuse("A segment of chunks[", i, "] is ", segment.n_words, " words from word ",
                   segment.word_offset, " on, but the chunk has ", shape.n_words, ".");
        }
        const size_t have = spans_[segment.buffer].size();
        const size_t n_bytes = segment.n_words * word_bytes;
        if (n_bytes > have || segment.byte_offset > have - n_bytes) {
            refuse("A segment of chunks[", i, "] is ", n_bytes, " bytes from byte ",
                   segment.byte_offset, " of buffer ", segment.buffer, ", which has ", have,
                   " bytes.");
        }
    }
}

void RunArguments::require_cover() const {
    std::span<const Segment> left = segments_;
    for (size_t i = 0; i < chunks_.size(); ++i) {
        uint64_t n_covered = 0;
        for (const Segment& segment : left.first(chunks_[i].n_segments)) {
            if (segment.word_offset != n_covered) {
                refuse("A segment of chunks[", i, "] begins at word ", segment.word_offset,
                       ", but the segments before it end at word ", n_covered, ".");
            }
            n_covered += segment.n_words;
        }
        if (n_covered != chunks_[i].shape.n_words) {
            refuse("The segments of chunks[", i, "] hold ", n_covered, " words, but the chunk has ",
                   chunks_[i].shape.n_words, ".");
        }
        left = left.subspan(chunks_[i].n_segments);
    }
}

void RunArguments::require_apart_from(const Buffer& other, const char* name) const {
    for (size_t i = 0; i < held_.size(); ++i) {
        require_apart(other, name, held_[i], ("buffer " + std::to_string(i)).c_str());
    }
}

EncodeOptions options_of(const std::string& codec, int zstd_level, std::optional<bool> block_map,
                         bool one_frame) {
    constexpr int kMostZstdLevel = 22;  // of the library
    EncodeOptions options;
    if (zstd_level < 0 || zstd_level > kMostZstdLevel) {
        refuse("zstd_level must be 0 to ", kMostZstdLevel, ", not ", zstd_level, ".");
    }
    if (codec == "off") {
        options = {CodecChoice::kRaw, MapChoice::kNever};
    } else if (codec == "fast") {
        options.codec = CodecChoice::kFast;
    } else if (one_frame && codec == "raw") {
        options.codec = CodecChoice::kRaw;
    } else if (one_frame && codec == "ladder") {
        options.codec = CodecChoice::kLadder;
    } else if (one_frame && codec == "modelled") {
        options.codec = CodecChoice::kModelled;
    } else if (one_frame && codec == "ans") {
        options.codec = CodecChoice::kAns;
    } else if (one_frame && codec == "huffman") {
        options.codec = CodecChoice::kHuffman;
    } else if (one_frame && codec == "delta") {
        options.codec = CodecChoice::kDelta;
    } else if (codec == "max") {
        options.codec = CodecChoice::kMax;
    } else if (one_frame && codec == "zstd") {
        options.codec = CodecChoice::kZstd;
    } else if (codec != "auto") {
        refuse("codec must be ",
               one_frame ? "'auto', 'fast', 'max', 'off', 'raw', 'ladder', 'modelled', 'ans', "
                           "'zstd', 'huffman' or 'delta'"
                         : "'auto', 'fast', 'max' or 'off'",
               ", not '", codec, "'.");
    }
    options.zstd_level = zstd_level;
    if (block_map.has_value()) {
        options.block_map = *block_map ? MapChoice::kAlways : MapChoice::kNever;
    }
    return options;
}

void check_records(const Buffer& records, size_t n_chunks) {
    const size_t rows = records.rows("records", kIndexRecordBytes, 1);
    if (rows != n_chunks) {
        refuse("records has ", rows, " rows, but there are ", n_chunks, " chunks.");
    }
}

void refuse_coding(const char* what, Status status) {
    refuse(what, " cannot be coded: ", status_text(status), ".");
}

void check_alignment(size_t align_bytes) {
    if (align_bytes == 0 || align_bytes % kFrameAlignment != 0 || align_bytes > kMaxFrameBytes) {
        refuse("align_bytes must be a multiple of ", kFrameAlignment, ", not ", align_bytes, ".");
    }
}

BaseArguments::BaseArguments(nb::sequence bases, size_t n_chunks) {
    for (nb::handle link : bases) {
        const size_t n = nb::len(link);
        uint64_t start = 0;
        if (n < 2 || n > 3 || (n == 3 && !read_integer(link, 2, start))) {
            refuse("bases holds frames, records and, if that is not 0, the offset of the frames.");
        }
        const Buffer& frames = held_.emplace_back(link[0], "frames of a base",
                                                  Buffer::Access::kRead);
        const Buffer& records = held_.emplace_back(link[1], "records of a base",
                                                   Buffer::Access::kRead);
        if (records.rows("records of a base", kIndexRecordBytes, 1) != n_chunks) {
            refuse("The records of a base are not as many as the ", n_chunks, " chunks.");
        }
        links_.push_back({frames.bytes(), records.bytes().data(), start});
    }
}

void BaseArguments::require_apart_from(const Buffer& written, const char* name) const {
    for (const Buffer& held : held_) {
        require_apart(written, name, held, "a base");
    }
}

BaseWords::BaseWords(nb::handle words, uint32_t payload_crc, const Dtype& dtype,
                     size_t n_words) {
    if (words.is_none()) {
        return;
    }
    held_.emplace(words, "base", Buffer::Access::kRead);
    if (held_->words("base", dtype) != n_words) {
        refuse("base has ", held_->words("base", dtype), " words, the chunk ", n_words, ".");
    }
    const auto is_too_large = [&](uint8_t word) { return word >> dtype.bits != 0; };
    if (dtype.bits < 8 && std::ranges::any_of(held_->bytes(), is_too_large)) {
        refuse("base has words of more than ", int{dtype.bits}, " bits.");
    }
    base_ = {held_->bytes().data(), payload_crc};
}

void BaseWords::require_apart_from(const Buffer& written, const char* name) const {
    if (held_.has_value()) {
        require_apart(written, name, *held_, "base");
    }
}

}  // namespace ogds
