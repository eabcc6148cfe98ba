#include "ans_words.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "bytes.h"
#include "ladder_kernels.h"

namespace ogds {
namespace {

constexpr uint32_t kWindow = 14;  // symbols below this are distances from the predicted exponent
constexpr uint32_t kZero = 14;    // FORMAT 7.6

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
    static constexpr size_t kRestBytes = ans_rest_bytes(kSplit);
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
        return static_cast<Word>(rest >> kLowBits << kSignAt | e << kBits.mantissa |
                                 (y & 15) << kLowBits | (rest & kLowMask));
    }
};

// Returns whether there was an escape.
template <class L>
bool split_block(const uint8_t* __restrict words, uint32_t n, const uint8_t* __restrict predicted,
                 uint8_t* __restrict y, uint8_t* __restrict rests) noexcept {
    using Word = typename L::Word;
    Word any = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const Word word = L::load(words, i);
        const Word e = L::exponent(word);
        const auto distance = static_cast<Word>((predicted[i] - e) & L::kExponentMask);
        const Word in_window = distance < kWindow ? distance : Word{kEscapeSymbol};
        const Word k = e == 0 ? Word{kZero} : in_window;
        any = static_cast<Word>(any | (k + 1));  // bit 4 is set by the escape alone
        y[i] = static_cast<uint8_t>(k << kAnsMantissaBits | ((word >> L::kLowBits) & 15));
        L::store_rest(rests, i, static_cast<Word>(word >> L::kSignAt << L::kLowBits |
                                                  (word & L::kLowMask)));
    }
    return any >> 4 != 0;
}

template <class L>
uint32_t split_words(const uint8_t* words, uint32_t m, const uint8_t* predicted, uint8_t* y,
                     uint8_t* rests, uint8_t* escapes) noexcept {
    uint32_t n_escapes = 0;
    for (uint32_t first = 0; first < m; first += kBlock) {
        const uint32_t n = std::min(kBlock, m - first);
        const uint8_t* block = words + first * L::kWordBytes;
        if (!split_block<L>(block, n, predicted + first, y + first,
                            rests + first * L::kRestBytes)) {
            continue;
        }
        for (uint32_t i = 0; i < n; ++i) {
            if (y[first + i] >> kAnsMantissaBits == kEscapeSymbol) {
                escapes[n_escapes++] = static_cast<uint8_t>(L::exponent(L::load(block, i)));
            }
        }
    }
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
        const Word e = k == kZero ? Word{0} : in_window;
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
        const uint8_t* block_rests = rests + first * L::kRestBytes;
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

template <class Use>
auto with_layout(Split split, Use use) noexcept {
    switch (split) {
        case Split::kBf16: return use(Layout<Split::kBf16>());
        case Split::kFp16: return use(Layout<Split::kFp16>());
        default: return use(Layout<Split::kFp32>());
    }
}

// Bit i of the index in bit 0 of byte i.
constexpr std::array<uint64_t, 256> make_spread() {
    std::array<uint64_t, 256> table{};
    for (uint32_t bits = 0; bits < 256; ++bits) {
        for (uint32_t i = 0; i < 8; ++i) {
            table[bits] |= static_cast<uint64_t>((bits >> i) & 1) << (8 * i);
        }
    }
    return table;
}

constexpr std::array<uint64_t, 256> kSpread = make_spread();

// Bit 0 of byte i in bit i.
uint8_t gathered(uint64_t bytes) noexcept {
    return static_cast<uint8_t>((bytes & 0x0101010101010101u) * 0x0102040810204080u >> 56);
}

}  // namespace

uint32_t split_ans(const uint8_t* words, uint32_t m, Split split, const uint8_t* predicted,
                   uint8_t* y, uint8_t* rests, uint8_t* escapes) noexcept {
    return with_layout(split, [&](auto layout) {
        return split_words<decltype(layout)>(words, m, predicted, y, rests, escapes);
    });
}

bool merge_ans(const uint8_t* y, const uint8_t* rests, uint32_t m, Split split,
               const uint8_t* predicted, const uint8_t* escapes, uint32_t n_escapes,
               uint8_t* words) noexcept {
    return with_layout(split, [&](auto layout) {
        return merge_words<decltype(layout)>(y, rests, m, predicted, escapes, n_escapes, words);
    });
}

uint32_t all_rests(const uint8_t* rests, uint32_t m, Split split) noexcept {
    const size_t n_bytes = m * ans_rest_bytes(split);
    uint64_t any = 0;
    size_t i = 0;
    for (; i + 8 <= n_bytes; i += 8) {
        any |= load_u64le(rests + i);
    }
    any |= load_partial_u64le(rests + i, n_bytes - i);
    any |= any >> 32;
    if (ans_rest_bytes(split) == 1) {
        any |= any >> 16;
        any = (any | any >> 8) & 0xFF;
    }
    return static_cast<uint32_t>(any);
}

void write_fields(const uint8_t* rests, uint32_t m, Split split, uint32_t n_bits, uint32_t z,
                  uint8_t* fields) noexcept {
    for (; n_bits >= 8; n_bits -= 8, fields += m) {
        const uint32_t shift = z + n_bits - 8;
        for (uint32_t i = 0; i < m; ++i) {
            fields[i] = static_cast<uint8_t>(load_u32le(rests + 4 * i) >> shift);
        }
    }
    const size_t bitmap_bytes = level_bytes(1, m);
    for (uint32_t first = 0; first < m && n_bits > 0; first += 8) {
        const uint32_t n = std::min(8u, m - first);
        uint8_t low[8] = {};
        if (ans_rest_bytes(split) == 1) {
            store_u64le(low, load_partial_u64le(rests + first, n) >> z);
        } else {
            for (uint32_t i = 0; i < n; ++i) {
                low[i] = static_cast<uint8_t>(load_u32le(rests + 4 * (first + i)) >> z);
            }
        }
        const uint64_t eight = load_u64le(low);
        for (uint32_t bit = 0; bit < n_bits; ++bit) {
            fields[(n_bits - 1 - bit) * bitmap_bytes + first / 8] = gathered(eight >> bit);
        }
    }
}

void read_fields(const uint8_t* fields, uint32_t m, Split split, uint32_t n_bits, uint32_t z,
                 uint8_t* rests) noexcept {
    const size_t rest_bytes = ans_rest_bytes(split);
    std::fill_n(rests, m * rest_bytes, uint8_t{0});
    for (; n_bits >= 8; n_bits -= 8, fields += m) {
        const uint32_t shift = z + n_bits - 8;
        for (uint32_t i = 0; i < m; ++i) {
            const uint32_t upper = uint32_t{fields[i]} << shift;
            store_u32le(rests + 4 * i, load_u32le(rests + 4 * i) | upper);
        }
    }
    const size_t bitmap_bytes = level_bytes(1, m);
    for (uint32_t first = 0; first < m && n_bits > 0; first += 8) {
        const uint32_t n = std::min(8u, m - first);
        uint64_t eight = 0;
        for (uint32_t bitmap = 0; bitmap < n_bits; ++bitmap) {
            eight = eight << 1 | kSpread[fields[bitmap * bitmap_bytes + first / 8]];
        }
        if (rest_bytes == 1) {
            store_partial_u64le(rests + first, n, eight << z);
            continue;
        }
        for (uint32_t i = 0; i < n; ++i) {
            const auto low = static_cast<uint8_t>(eight >> (8 * i));
            uint8_t* rest = rests + 4 * (first + i);
            store_u32le(rest, load_u32le(rest) | uint32_t{low} << z);
        }
    }
}

}  // namespace ogds
