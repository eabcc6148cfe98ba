#include "ans_words.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "byte_bits.h"
#include "bytes.h"
#include "ladder_kernels.h"

namespace ogds {
namespace {

// Words of a block go through vectors; only a block with an escape is looked at word by word.
constexpr uint32_t kBlock = 256;

template <Split kSplit>
struct Layout {
    static constexpr SplitBits kBits = split_bits(kSplit);
    static constexpr uint32_t kLowBits = kBits.mantissa - kAnsMantissaBits;
    static constexpr uint32_t kLowMask = (1u << kLowBits) - 1;
    static constexpr uint32_t kExponentMask = (1u << kBits.exponent) - 1;
    static constexpr uint32_t kSignAt = kBits.exponent + kBits.mantissa;
    static constexpr size_t kWordBytes = (kSignAt + 1) / 8;
    // A byte, or an integer of 4.
    static constexpr uint32_t kRestBits = ans_rest_bits(kSplit);
    static constexpr size_t kRestBytes = kRestBits > 8 ? 4 : 1;
    // As narrow as a word: then vectors hold as many as they can.
    using Word = std::conditional_t<kWordBytes == 2, uint16_t, uint32_t>;

    static Word load(const uint8_t* words, uint32_t i) noexcept {
        Word word;
        std::memcpy(&word, words + i * kWordBytes, sizeof word);
        return word;
    }

    static void store(uint8_t* words, uint32_t i, Word word) noexcept {
        std::memcpy(words + i * kWordBytes, &word, sizeof word);
    }

    static Word load_rest(const uint8_t* rests, uint32_t i) noexcept {
        return static_cast<Word>(kRestBytes == 1 ? rests[i] : load_u32le(rests + 4 * i));
    }

    static void store_rest(uint8_t* rests, uint32_t i, Word rest) noexcept {
        if constexpr (kRestBytes == 1) {
            rests[i] = static_cast<uint8_t>(rest);
        } else {
            store_u32le(rests + 4 * i, rest);
        }
    }

    static Word exponent(Word word) noexcept {
        return static_cast<Word>((word >> kBits.mantissa) & kExponentMask);
    }

    static Word joined(Word y, Word rest, Word e) noexcept {
        return static_cast<Word>(uint32_t{rest} >> kLowBits << kSignAt |
                                 uint32_t{e} << kBits.mantissa | (y & 15u) << kLowBits |
                                 (rest & kLowMask));
    }
};

// Returns whether there was an escape, and ORs the rests to `any_rest`.
template <class L>
bool split_block(const uint8_t* __restrict words, uint32_t n, const uint8_t* __restrict predicted,
                 uint8_t* __restrict y, uint8_t* __restrict rests,
                 typename L::Word& any_rest) noexcept {
    using Word = typename L::Word;
    Word any = 0;
    Word any_bits = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const Word word = L::load(words, i);
        const Word e = L::exponent(word);
        const auto distance = static_cast<Word>((predicted[i] - e) & L::kExponentMask);
        const Word in_window = distance < kAnsWindow ? distance : Word{kEscapeSymbol};
        const Word k = e == 0 ? Word{kZeroSymbol} : in_window;
        any = static_cast<Word>(any | (k + 1));  // bit 4 is set by the escape alone
        y[i] = static_cast<uint8_t>(k << kAnsMantissaBits | ((word >> L::kLowBits) & 15));
        const auto rest = static_cast<Word>(uint32_t{word} >> L::kSignAt << L::kLowBits |
                                            (word & L::kLowMask));
        L::store_rest(rests, i, rest);
        any_bits = static_cast<Word>(any_bits | rest);
    }
    any_rest = static_cast<Word>(any_rest | any_bits);
    return any >> 4 != 0;
}

// The rests of a block as split_block and merge_block have them: those of a byte become bitmaps.
template <class L>
void put_rests(const uint8_t* block_rests, uint32_t first, uint32_t n, uint32_t m,
               uint8_t* rests) noexcept {
    const size_t bitmap_bytes = level_bytes(1, m);
    for (uint32_t i = 0; i < n; i += 8) {
        const uint64_t eight = load_partial_u64le(block_rests + i, std::min(8u, n - i));
        for (uint32_t bit = 0; bit < L::kRestBits; ++bit) {
            rests[(L::kRestBits - 1 - bit) * bitmap_bytes + (first + i) / 8] =
                gathered(eight >> bit);
        }
    }
}

template <class L>
void take_rests(const uint8_t* rests, uint32_t first, uint32_t n, uint32_t m,
                uint8_t* block_rests) noexcept {
    const size_t bitmap_bytes = level_bytes(1, m);
    for (uint32_t i = 0; i < n; i += 8) {
        uint64_t eight = 0;
        for (uint32_t bitmap = 0; bitmap < L::kRestBits; ++bitmap) {
            eight = eight << 1 | kSpread[rests[bitmap * bitmap_bytes + (first + i) / 8]];
        }
        store_u64le(block_rests + i, eight);
    }
}

template <class L>
uint32_t split_words(const uint8_t* words, uint32_t m, const uint8_t* predicted, uint8_t* y,
                     uint8_t* rests, uint8_t* escapes, uint32_t& any_rest) noexcept {
    uint32_t n_escapes = 0;
    typename L::Word any = 0;
    for (uint32_t first = 0; first < m; first += kBlock) {
        const uint32_t n = std::min(kBlock, m - first);
        const uint8_t* block = words + first * L::kWordBytes;
        uint8_t bytes[kBlock];
        uint8_t* block_rests = L::kRestBytes == 1 ? bytes : rests + first * L::kRestBytes;
        const bool escaped = split_block<L>(block, n, predicted + first, y + first, block_rests,
                                            any);
        if constexpr (L::kRestBytes == 1) {
            put_rests<L>(bytes, first, n, m, rests);
        }
        for (uint32_t i = 0; escaped && i < n; ++i) {
            if (y[first + i] >> kAnsMantissaBits == kEscapeSymbol) {
                escapes[n_escapes++] = static_cast<uint8_t>(L::exponent(L::load(block, i)));
            }
        }
    }
    any_rest = any;
    return n_escapes;
}

// Escapes become exponents of the window. Returns whether there was one.
template <class L>
bool merge_block(const uint8_t* __restrict y, const uint8_t* __restrict rests, uint32_t n,
                 const uint8_t* __restrict predicted, uint8_t* __restrict words) noexcept {
    using Word = typename L::Word;
    Word any = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const auto k = static_cast<Word>(y[i] >> kAnsMantissaBits);
        const auto in_window = static_cast<Word>((predicted[i] - k) & L::kExponentMask);
        any = static_cast<Word>(any | (k + 1));  // bit 4 is set by the escape alone
        const Word e = k == kZeroSymbol ? Word{0} : in_window;
        L::store(words, i, L::joined(y[i], L::load_rest(rests, i), e));
    }
    return any >> 4 != 0;
}

template <class L>
bool merge_words(const uint8_t* y, const uint8_t* rests, uint32_t m, const uint8_t* predicted,
                 const uint8_t* escapes, uint32_t n_escapes, uint8_t* words) noexcept {
    uint32_t n_found = 0;
    for (uint32_t first = 0; first < m; first += kBlock) {
        const uint32_t n = std::min(kBlock, m - first);
        uint8_t* block = words + first * L::kWordBytes;
        uint8_t bytes[kBlock];
        const uint8_t* block_rests = L::kRestBytes == 1 ? bytes : rests + first * L::kRestBytes;
        if constexpr (L::kRestBytes == 1) {
            take_rests<L>(rests, first, n, m, bytes);
        }
        if (!merge_block<L>(y + first, block_rests, n, predicted + first, block)) {
            continue;
        }
        for (uint32_t i = 0; i < n; ++i) {
            if (y[first + i] >> kAnsMantissaBits != kEscapeSymbol) {
                continue;
            }
            if (n_found == n_escapes) {
                return false;
            }
            L::store(block, i,
                     L::joined(y[first + i], L::load_rest(block_rests, i), escapes[n_found++]));
        }
    }
    return n_found == n_escapes;
}

template <Split kSplit>
constexpr auto kSplitWords = split_words<Layout<kSplit>>;
template <Split kSplit>
constexpr auto kMergeWords = merge_words<Layout<kSplit>>;

}  // namespace

constinit const AnsWordKernels kAnsWordsScalar = {
    {nullptr, kSplitWords<Split::kBf16>, kSplitWords<Split::kFp16>, kSplitWords<Split::kFp32>},
    {nullptr, kMergeWords<Split::kBf16>, kMergeWords<Split::kFp16>, kMergeWords<Split::kFp32>},
};

uint32_t split_ans_fp32(const uint8_t* words, uint32_t m, const uint8_t* predicted, uint8_t* y,
                        uint8_t* rests, uint8_t* escapes, uint32_t& any_rest) noexcept {
    return kSplitWords<Split::kFp32>(words, m, predicted, y, rests, escapes, any_rest);
}

bool merge_ans_fp32(const uint8_t* y, const uint8_t* rests, uint32_t m, const uint8_t* predicted,
                    const uint8_t* escapes, uint32_t n_escapes, uint8_t* words) noexcept {
    return kMergeWords<Split::kFp32>(y, rests, m, predicted, escapes, n_escapes, words);
}

void write_fields(const uint8_t* rests, uint32_t m, Split split, uint32_t n_bits, uint32_t z,
                  uint8_t* fields) noexcept {
    const size_t bitmap_bytes = level_bytes(1, m);
    if (ans_rest_bits(split) <= 8) {
        const uint32_t first = ans_rest_bits(split) - z - n_bits;
        std::memcpy(fields, rests + first * bitmap_bytes, n_bits * bitmap_bytes);
        return;
    }
    for (; n_bits >= 8; n_bits -= 8, fields += m) {
        const uint32_t shift = z + n_bits - 8;
        for (uint32_t i = 0; i < m; ++i) {
            fields[i] = static_cast<uint8_t>(load_u32le(rests + 4 * i) >> shift);
        }
    }
    for (uint32_t first = 0; first < m && n_bits > 0; first += 8) {
        const uint32_t n = std::min(8u, m - first);
        uint8_t low[8] = {};
        for (uint32_t i = 0; i < n; ++i) {
            low[i] = static_cast<uint8_t>(load_u32le(rests + 4 * (first + i)) >> z);
        }
        const uint64_t eight = load_u64le(low);
        for (uint32_t bit = 0; bit < n_bits; ++bit) {
            fields[(n_bits - 1 - bit) * bitmap_bytes + first / 8] = gathered(eight >> bit);
        }
    }
}

const uint8_t* read_fields(const uint8_t* fields, uint32_t m, Split split, uint32_t n_bits,
                           uint32_t z, uint8_t* scratch) noexcept {
    const size_t bitmap_bytes = level_bytes(1, m);
    if (ans_rest_bits(split) <= 8) {
        if (n_bits == ans_rest_bits(split)) {
            return fields;
        }
        const uint32_t first = ans_rest_bits(split) - z - n_bits;
        std::memset(scratch, 0, ans_rest_bits(split) * bitmap_bytes);
        std::memcpy(scratch + first * bitmap_bytes, fields, n_bits * bitmap_bytes);
        return scratch;
    }
    std::memset(scratch, 0, size_t{m} * 4);
    for (; n_bits >= 8; n_bits -= 8, fields += m) {
        const uint32_t shift = z + n_bits - 8;
        for (uint32_t i = 0; i < m; ++i) {
            const uint32_t upper = uint32_t{fields[i]} << shift;
            store_u32le(scratch + 4 * i, load_u32le(scratch + 4 * i) | upper);
        }
    }
    for (uint32_t first = 0; first < m && n_bits > 0; first += 8) {
        const uint32_t n = std::min(8u, m - first);
        uint64_t eight = 0;
        for (uint32_t bitmap = 0; bitmap < n_bits; ++bitmap) {
            eight = eight << 1 | kSpread[fields[bitmap * bitmap_bytes + first / 8]];
        }
        for (uint32_t i = 0; i < n; ++i) {
            const auto low = static_cast<uint8_t>(eight >> (8 * i));
            uint8_t* rest = scratch + 4 * (first + i);
            store_u32le(rest, load_u32le(rest) | uint32_t{low} << z);
        }
    }
    return scratch;
}

}  // namespace ogds
