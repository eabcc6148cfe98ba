#include "zstd.h"

#include <algorithm>

#include "bytes.h"

namespace ogds {
namespace {

// Words that go from rows to planes at once: they stay in the first-level cache.
constexpr uint32_t kTileWords = 2048;

// The look: this many pieces, evenly spread. Chosen: a thirtieth of a chunk of 1 MiB.
constexpr uint32_t kSamplePieces = 4;
constexpr uint32_t kSamplePieceBytes = 8192;
// Chosen: below, coding all costs hardly more than a look.
constexpr size_t kSampleAboveBytes = 2 * kSamplePieces * kSamplePieceBytes;
// Chosen: below, a frame of 64-byte steps can hardly get shorter.
constexpr size_t kLeastBytes = 256;

// Bytes of n words to their planes; plane b begins at planes + b * stride. A loop a plane, each of
// which a compiler turns into vector code.
template <class Word>
void split_planes(const uint8_t* words, uint32_t n, uint8_t* planes, size_t stride) noexcept {
    for (uint32_t b = 0; b < sizeof(Word); ++b) {
        uint8_t* plane = planes + b * stride;
        for (uint32_t i = 0; i < n; ++i) {
            Word word;
            __builtin_memcpy(&word, words + size_t{i} * sizeof(Word), sizeof(Word));
            plane[i] = static_cast<uint8_t>(word >> (8 * b));
        }
    }
}

template <class Word>
void merge_planes(const uint8_t* planes, size_t stride, uint32_t n, uint8_t* words) noexcept {
    for (uint32_t i = 0; i < n; ++i) {
        Word word = 0;
        for (uint32_t b = 0; b < sizeof(Word); ++b) {
            word = static_cast<Word>(word | static_cast<Word>(planes[b * stride + i]) << (8 * b));
        }
        __builtin_memcpy(words + size_t{i} * sizeof(Word), &word, sizeof(Word));
    }
}

void split(const uint8_t* words, uint32_t n, const Dtype& dtype, uint8_t* planes,
           size_t stride) noexcept {
    if (dtype.container_bytes == 1) {
        const auto mask = static_cast<uint8_t>(word_mask(dtype));
        for (uint32_t i = 0; i < n; ++i) {
            planes[i] = words[i] & mask;
        }
        return;
    }
    const uint32_t word_bytes = dtype.container_bytes;
    for (uint32_t at = 0; at < n; at += kTileWords) {
        const uint32_t m = std::min(kTileWords, n - at);
        const uint8_t* from = words + size_t{at} * word_bytes;
        switch (word_bytes) {
            case 2: split_planes<uint16_t>(from, m, planes + at, stride); break;
            case 4: split_planes<uint32_t>(from, m, planes + at, stride); break;
            default: split_planes<uint64_t>(from, m, planes + at, stride); break;
        }
    }
}

void merge(const uint8_t* planes, size_t stride, uint32_t n, const Dtype& dtype,
           uint8_t* words) noexcept {
    switch (dtype.container_bytes) {
        case 1: __builtin_memcpy(words, planes, n); break;
        case 2: merge_planes<uint16_t>(planes, stride, n, words); break;
        case 4: merge_planes<uint32_t>(planes, stride, n, words); break;
        default: merge_planes<uint64_t>(planes, stride, n, words); break;
    }
}

bool high_bits_are_zero(const uint8_t* bytes, size_t n, const Dtype& dtype) noexcept {
    uint8_t all = 0;
    for (size_t i = 0; i < n; ++i) {
        all |= bytes[i];
    }
    return all >> dtype.bits == 0;
}

}  // namespace

bool zstd_is_hopeful(const uint8_t* words, NormalRuns runs, uint32_t n_normal_words,
                     const Dtype& dtype, int level, size_t min_saving,
                     Workspace& workspace) noexcept {
    const ForeignCodec* zstd = workspace.zstd;
    const size_t all = size_t{n_normal_words} * dtype.container_bytes;
    if (zstd == nullptr || all < kLeastBytes) {
        return false;
    }
    if (all <= kSampleAboveBytes) {
        return true;
    }
    const uint32_t piece_words = kSamplePieceBytes / dtype.container_bytes;
    const size_t stride = size_t{kSamplePieces} * piece_words;
    uint8_t* planes = zstd->room(zstd->context, stride * dtype.container_bytes);
    if (planes == nullptr) {
        return true;  // coding all says why
    }
    uint32_t n_sample = 0;
    uint64_t passed = 0;
    uint32_t piece = 0;
    // With a map the runs may be shorter than a piece: the sample then is shorter, too.
    while (piece < kSamplePieces && passed < n_normal_words) {
        const Run run = runs.next(piece_words);
        if (passed >= uint64_t{n_normal_words} * piece / kSamplePieces) {
            split(words + size_t{run.first} * dtype.container_bytes, run.n_words, dtype,
                  planes + n_sample, stride);
            n_sample += run.n_words;
            ++piece;
        }
        passed += run.n_words;
    }
    for (uint32_t b = 1; b < dtype.container_bytes; ++b) {  // close the gaps of a short sample
        __builtin_memmove(planes + size_t{b} * n_sample, planes + b * stride, n_sample);
    }
    std::span<const uint8_t> coded;
    const std::span<const uint8_t> content(planes, size_t{n_sample} * dtype.container_bytes);
    if (zstd->encode(zstd->context, content, level, coded) != Status::kOk) {
        return true;
    }
    const size_t raw = raw_bytes(dtype, n_sample);
    return coded.size() + ceil_div(raw, min_saving) <= raw;
}

Status encode_zstd(const uint8_t* words, NormalRuns runs, uint32_t n_normal_words,
                   const Dtype& dtype, int level, PayloadWriter& out,
                   Workspace& workspace) noexcept {
    const ForeignCodec* zstd = workspace.zstd;
    if (zstd == nullptr) {
        return Status::kZstdAbsent;
    }
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    const size_t n_bytes = size_t{n_normal_words} * dtype.container_bytes;
    // A plane is a copy even of words that are one: zstd looks at bytes again and again, and the
    // caller's may change meanwhile.
    uint8_t* planes = zstd->room(zstd->context, n_bytes);
    if (planes == nullptr) {
        return Status::kZstdFailed;
    }
    for (uint32_t done = 0; done < n_normal_words;) {
        const Run run = runs.next(n_normal_words - done);
        split(words + size_t{run.first} * dtype.container_bytes, run.n_words, dtype,
              planes + done, n_normal_words);
        done += run.n_words;
    }
    std::span<const uint8_t> coded;
    if (const Status status = zstd->encode(zstd->context, {planes, n_bytes}, level, coded);
        status != Status::kOk) {
        return status;
    }
    uint8_t* to = out.reserve(coded.size());
    if (to == nullptr) {
        return Status::kNoSpace;
    }
    __builtin_memcpy(to, coded.data(), coded.size());
    out.checksum();
    return Status::kOk;
}

Status decode_zstd(PayloadReader& in, NormalRuns runs, uint32_t n_normal_words,
                   const Dtype& dtype, uint8_t* words, Workspace& workspace) noexcept {
    const ForeignCodec* zstd = workspace.zstd;
    if (zstd == nullptr) {
        return Status::kZstdAbsent;
    }
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    const std::span<const uint8_t> coded(in.take(0), in.left());
    in.take(coded.size());
    in.checksum();
    const size_t n_bytes = size_t{n_normal_words} * dtype.container_bytes;
    std::span<const uint8_t> content;
    if (const Status status = zstd->decode(zstd->context, coded, n_bytes, content);
        status != Status::kOk) {
        return status;
    }
    if (content.size() != n_bytes) {
        return Status::kZstdSize;
    }
    if (dtype.bits < 8 && !high_bits_are_zero(content.data(), n_bytes, dtype)) {
        return Status::kZstdBits;
    }
    for (uint32_t done = 0; words != nullptr && done < n_normal_words;) {
        const Run run = runs.next(n_normal_words - done);
        merge(content.data() + done, n_normal_words, run.n_words, dtype,
              words + size_t{run.first} * dtype.container_bytes);
        done += run.n_words;
    }
    return Status::kOk;
}

}  // namespace ogds
