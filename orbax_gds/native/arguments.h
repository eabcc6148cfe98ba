// The arguments of the Python functions: buffers and tables, checked before the GIL is released.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "run.h"

namespace ogds {

// Throws ValueError; the parts are joined.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
    std::string text;
    const auto append = [&text](const auto& part) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
            text += std::to_string(part);
        } else {
            text += part;
        }
    };
    (append(parts), ...);
    throw nanobind::value_error(text.c_str());
}

// Whether an item of a sequence is an integer that fits, which is then read. It is taken out before
// the cast, which may not throw: an object that cannot be indexed so would end the process.
template <class Integer>
bool read_integer(nanobind::handle items, size_t at, Integer& integer) {
    const nanobind::object item = items[at];
    return nanobind::try_cast<Integer>(item, integer);
}

// A contiguous buffer export, held for as long as this object lives. It stays where it was made:
// an exporter may point into the Py_buffer that it filled.
class Buffer {
public:
    enum class Access { kRead, kWrite };

    Buffer(nanobind::handle object, const char* name, Access access);
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();

    std::span<uint8_t> bytes() const noexcept {
        return {static_cast<uint8_t*>(view_.buf), static_cast<size_t>(view_.len)};
    }

    // Number of rows of a C-contiguous array [rows, n_columns] of unsigned integers.
    size_t rows(const char* name, size_t n_columns, size_t item_bytes) const;

    // Number of words, which must be unsigned integers as wide as the dtype's container.
    size_t words(const char* name, const Dtype& dtype) const;

private:
    // Whether the elements are little-endian unsigned integers so many bytes wide.
    bool has_unsigned(size_t item_bytes) const noexcept;

    Py_buffer view_{};
};

// Refuses memory that is written while the other is read.
void require_apart(const Buffer& written, const char* written_name, const Buffer& read,
                   const char* read_name);

// The caller's buffers, segments and chunks of a run.
class RunArguments {
public:
    // Without `has_segments` the chunks have none, whatever the table says. What is read is to be
    // encoded: its chunks have a fifth column, the columns of the matrix. What is written was
    // decoded: its segments have a fifth column, the rule.
    RunArguments(nanobind::sequence buffers, nanobind::handle segments, nanobind::handle chunks,
                 Buffer::Access access, bool has_segments = true);

    // Refuses segments that do not cover each chunk in order, without gap or overlap.
    void require_cover() const;

    // Refuses a buffer that shares memory with `other`.
    void require_apart_from(const Buffer& other, const char* name) const;

    std::span<const RunChunk> chunks() const noexcept { return chunks_; }
    std::span<const Segment> segments() const noexcept { return segments_; }
    std::span<const std::span<uint8_t>> buffers() const noexcept { return spans_; }
    const Buffer& buffer(size_t i) const noexcept { return held_[i]; }
    std::span<const std::span<const uint8_t>> readable() const noexcept { return readable_; }

private:
    void read_segments(nanobind::handle segments, Buffer::Access access);
    void check_chunk(size_t i, std::span<const Segment> segments) const;

    std::deque<Buffer> held_;
    std::vector<std::span<uint8_t>> spans_;
    std::vector<std::span<const uint8_t>> readable_;
    std::vector<Segment> segments_;
    std::vector<RunChunk> chunks_;
};

// The frames of the bases of a run: bytes and their records, one a link, and what the offsets count
// from if that is not 0.
class BaseArguments {
public:
    BaseArguments(nanobind::sequence bases, size_t n_chunks);

    std::span<const BaseLink> links() const noexcept { return links_; }

    // Refuses a buffer that is written and shares memory with a link.
    void require_apart_from(const Buffer& written, const char* name) const;

private:
    std::deque<Buffer> held_;
    std::vector<BaseLink> links_;
};

// The words of the base of one frame, or None.
class BaseWords {
public:
    BaseWords(nanobind::handle words, uint32_t payload_crc, const Dtype& dtype, size_t n_words);

    const Base& base() const noexcept { return base_; }
    void require_apart_from(const Buffer& written, const char* name) const;

private:
    std::optional<Buffer> held_;
    Base base_;
};

// What a codec by name stands for; `one_frame` knows more names than a run does.
EncodeOptions options_of(const std::string& codec, int zstd_level, std::optional<bool> block_map,
                         bool one_frame);

// Refuses anything but one index record a chunk.
void check_records(const Buffer& records, size_t n_chunks);

// Refuses what the end of a run cannot be aligned to.
void check_alignment(size_t align_bytes);

// Throws ValueError for words that the core does not code.
[[noreturn]] void refuse_coding(const char* what, Status status);

}  // namespace ogds
