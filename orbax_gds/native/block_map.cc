#include "block_map.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"

namespace ogds {
namespace {

// Normal blocks are left after their first cache line: ask for those of later blocks early.
constexpr uint32_t kPrefetchBlocks = 16;

uint32_t words_in_block(uint32_t block, uint32_t n_words) noexcept {
    return std::min(kBlockWords, n_words - block * kBlockWords);
}

// One word, repeated to fill 8 bytes; only the bits that count.
uint64_t repeated(const uint8_t* word, const Dtype& dtype) noexcept {
    const uint64_t mask = word_mask(dtype);
    switch (dtype.container_bytes) {
        case 1: return word[0] * 0x0101010101010101u & mask;
        case 2: return load_u16le(word) * 0x0001000100010001u;
        case 4: return load_u32le(word) * 0x0000000100000001u;
        default: return load_u64le(word);
    }
}

// Whether 64 bytes are the pattern again and again: one test, so that all machines add them up at
// once.
bool is_repeated(const uint8_t* bytes, uint64_t pattern, uint64_t mask) noexcept {
    uint64_t different = 0;
    for (uint32_t i = 0; i < 64; i += 8) {
        different |= (load_u64le(bytes + i) ^ pattern) & mask;
    }
    return different == 0;
}

// Ends at the first 64 bytes that differ: other than constant blocks cost one cache line each.
BlockCode classify(const uint8_t* words, size_t n_bytes, const Dtype& dtype) noexcept {
    const uint64_t mask = word_mask(dtype);
    const uint64_t pattern = repeated(words, dtype);
    if (n_bytes >= 64 && ((load_u64le(words + 56) ^ pattern) & mask) != 0) {
        return BlockCode::kNormal;  // as most are, by one test
    }
    size_t i = 0;
    for (; i + 64 <= n_bytes; i += 64) {
        if (!is_repeated(words + i, pattern, mask)) {
            return BlockCode::kNormal;
        }
        if (i == 0) {
            for (size_t line = 128; line < n_bytes; line += 64) {  // all will be wanted
                __builtin_prefetch(words + line);
            }
        }
    }
    for (; i + 8 <= n_bytes; i += 8) {
        if (((load_u64le(words + i) ^ pattern) & mask) != 0) {
            return BlockCode::kNormal;
        }
    }
    const uint64_t rest = load_partial_u64le(words + i, n_bytes - i);
    const uint64_t rest_mask = mask & low_bits(static_cast<uint32_t>(8 * (n_bytes - i)));
    if (((rest ^ pattern) & rest_mask) != 0) {
        return BlockCode::kNormal;
    }
    return pattern == 0 ? BlockCode::kZero : BlockCode::kConstant;
}

// Whether the words are the base's; ends at the first 64 bytes that differ.
bool is_unchanged(const uint8_t* words, const uint8_t* base, size_t n_bytes,
                  const Dtype& dtype) noexcept {
    const uint64_t mask = word_mask(dtype);
    if (n_bytes >= 8 && ((load_u64le(words) ^ load_u64le(base)) & mask) != 0) {
        return false;
    }
    size_t i = 0;
    for (; i + 64 <= n_bytes; i += 64) {
        uint64_t different = 0;
        for (uint32_t k = 0; k < 64; k += 8) {
            different |= (load_u64le(words + i + k) ^ load_u64le(base + i + k)) & mask;
        }
        if (different != 0) {
            return false;
        }
    }
    for (; i + 8 <= n_bytes; i += 8) {
        if (((load_u64le(words + i) ^ load_u64le(base + i)) & mask) != 0) {
            return false;
        }
    }
    const uint64_t rest = load_partial_u64le(words + i, n_bytes - i) ^
                          load_partial_u64le(base + i, n_bytes - i);
    return (rest & mask) == 0;
}

void fill_words(uint8_t* words, size_t n_bytes, uint64_t pattern) noexcept {
    if (pattern == 0) {
        std::memset(words, 0, n_bytes);
        return;
    }
    size_t i = 0;
    for (; i + 8 <= n_bytes; i += 8) {
        store_u64le(words + i, pattern);
    }
    store_partial_u64le(words + i, n_bytes - i, pattern);
}

bool unused_bits_are_zero(const uint8_t* constants, uint32_t n, const Dtype& dtype) noexcept {
    return dtype.bits >= 8 || std::all_of(constants, constants + n, [&](uint8_t word) {
               return word >> dtype.bits == 0;
           });
}

}  // namespace

void NormalRuns::find_run() noexcept {
    while (at_ < n_words_ && block_code(map_, at_ / kBlockWords) != BlockCode::kNormal) {
        at_ = std::min(n_words_, at_ + kBlockWords);
    }
    end_ = at_;
    while (end_ < n_words_ && block_code(map_, end_ / kBlockWords) == BlockCode::kNormal) {
        end_ = std::min(n_words_, end_ + kBlockWords);
    }
}

Run NormalRuns::next(uint32_t max_words) noexcept {
    if (map_ == nullptr) {
        const Run run = {at_, std::min(max_words, n_words_ - at_)};
        at_ += run.n_words;
        return run;
    }
    if (at_ == end_) {
        find_run();
    }
    const Run run = {at_, std::min(max_words, end_ - at_)};
    at_ += run.n_words;
    return run;
}

bool write_block_map(const uint8_t* words, const uint8_t* base, uint32_t n_words,
                     const Dtype& dtype, uint8_t* map, PayloadWriter& out,
                     MapCounts& counts) noexcept {
    counts = {};
    uint8_t* written = out.reserve(map_bytes_of(n_words));
    if (written == nullptr) {
        return false;
    }
    std::memset(map, 0, map_bytes_of(n_words));
    const size_t block_bytes = size_t{kBlockWords} * dtype.container_bytes;
    const uint32_t n_blocks = n_blocks_of(n_words);
    for (uint32_t b = 0; b < n_blocks; ++b) {
        const uint32_t n = words_in_block(b, n_words);
        const uint8_t* block = words + b * block_bytes;
        if (b + kPrefetchBlocks < n_blocks) {
            __builtin_prefetch(block + kPrefetchBlocks * block_bytes);
        }
        const size_t n_bytes = size_t{n} * dtype.container_bytes;
        BlockCode code = classify(block, n_bytes, dtype);
        if (base != nullptr && is_unchanged(block, base + b * block_bytes, n_bytes, dtype)) {
            ++counts.n_unchanged;
            code = code == BlockCode::kNormal ? BlockCode::kSame : code;
        }
        if (code == BlockCode::kNormal) {
            counts.n_normal_words += n;
            continue;
        }
        map[b / 4] = static_cast<uint8_t>(map[b / 4] | static_cast<uint8_t>(code) << 2 * (b % 4));
        if (code == BlockCode::kZero) {
            ++counts.n_zero;
            continue;
        }
        if (code == BlockCode::kSame) {
            ++counts.n_same;
            continue;
        }
        ++counts.n_constant;
        uint8_t* constant = out.reserve(dtype.container_bytes);
        if (constant == nullptr) {
            return false;
        }
        store_partial_u64le(constant, dtype.container_bytes, repeated(block, dtype));
    }
    std::memcpy(written, map, map_bytes_of(n_words));
    out.checksum();
    return true;
}

bool map_pays(const MapCounts& counts, uint32_t n_words, const Dtype& dtype) noexcept {
    // Of what is the base's a delta would take an eighth of a bit a word.
    const size_t same_words = size_t{kBlockWords} * counts.n_same;
    const size_t other_words = n_words - counts.n_normal_words;
    const size_t saved_words = other_words - std::min(other_words, same_words);
    // The ladder would write the planes and a bit a word at least.
    const size_t saved_bytes = dtype.split == Split::kNone
                                   ? raw_bytes(dtype, saved_words)
                                   : saved_words * (dtype.container_bytes - 1u) + saved_words / 8;
    return saved_bytes + same_words / 64 >
           map_bytes_of(n_words) + size_t{counts.n_constant} * dtype.container_bytes;
}

Status read_block_map(PayloadReader& in, uint32_t n_words, const Dtype& dtype, bool has_base,
                      uint8_t* copy, BlockMap& map) noexcept {
    const uint32_t n_blocks = n_blocks_of(n_words);
    map = {};
    const uint8_t* stored = in.take(map_bytes_of(n_words));
    if (stored == nullptr) {
        return Status::kPayloadShort;
    }
    std::memcpy(copy, stored, map_bytes_of(n_words));
    map.map = copy;
    if (n_blocks % 4 != 0 && map.map[n_blocks / 4] >> (2 * (n_blocks % 4)) != 0) {
        return Status::kMapUnusedBits;
    }
    for (uint32_t b = 0; b < n_blocks; ++b) {
        switch (block_code(map.map, b)) {
            case BlockCode::kNormal: map.counts.n_normal_words += words_in_block(b, n_words); break;
            case BlockCode::kZero: ++map.counts.n_zero; break;
            case BlockCode::kConstant: ++map.counts.n_constant; break;
            case BlockCode::kSame: ++map.counts.n_same; break;
        }
    }
    if (map.counts.n_same != 0 && !has_base) {
        return Status::kMapReservedCode;
    }
    map.constants = in.take(size_t{map.counts.n_constant} * dtype.container_bytes);
    if (map.constants == nullptr) {
        return Status::kPayloadShort;
    }
    return unused_bits_are_zero(map.constants, map.counts.n_constant, dtype)
               ? Status::kOk
               : Status::kMapConstantBits;
}

void fill_blocks(const BlockMap& map, uint32_t n_words, const Dtype& dtype, const uint8_t* base,
                 uint8_t* words) noexcept {
    const size_t block_bytes = size_t{kBlockWords} * dtype.container_bytes;
    const uint8_t* constant = map.constants;
    for (uint32_t b = 0; b < n_blocks_of(n_words); ++b) {
        const BlockCode code = block_code(map.map, b);
        if (code == BlockCode::kNormal) {
            continue;
        }
        const size_t n_bytes = size_t{words_in_block(b, n_words)} * dtype.container_bytes;
        if (code == BlockCode::kSame) {
            if (base != words) {
                std::memcpy(words + b * block_bytes, base + b * block_bytes, n_bytes);
            }
            continue;
        }
        uint64_t pattern = 0;
        if (code == BlockCode::kConstant) {
            pattern = repeated(constant, dtype);
            constant += dtype.container_bytes;
        }
        fill_words(words + b * block_bytes, n_bytes, pattern);
    }
}

}  // namespace ogds
