#include "ans_words.h"

#include <algorithm>
#include <array>

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

    static uint32_t load(const uint8_t* at) noexcept {
        return kWordBytes == 2 ? load_u16le(at) : load_u32le(at);
    }

    static void store(uint8_t* at, uint32_t word) noexcept {
        if constexpr (kWordBytes == 2) {
            store_u16le(at, static_cast<uint16_t>(word));
        } else {
            store_u32le(at, word);
        }
    }

    static uint32_t exponent(uint32_t word) noexcept {
        return (word >> kBits.mantissa) & kExponentMask;
    }
};

// Returns whether there was an escape.
template <class L>
bool split_block(const uint8_t* words, uint32_t n, const uint8_t* predicted, uint8_t* y,
                 uint32_t* rests) noexcept {
    uint32_t any = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t word = L::load(words + i * L::kWordBytes);
        const uint32_t e = L::exponent(word);
        const uint32_t distance = (predicted[i] - e) & L::kExponentMask;
        const uint32_t in_window = distance < kWindow ? distance : kEscapeSymbol;
        const uint32_t k = e == 0 ? kZero : in_window;
        any |= k == kEscapeSymbol ? 1 : 0;
        y[i] = static_cast<uint8_t>(k << kAnsMantissaBits | ((word >> L::kLowBits) & 15));
        rests[i] = word >> L::kSignAt << L::kLowBits | (word & L::kLowMask);
    }
    return any != 0;
}

template <class L>
uint32_t split_words(const uint8_t* words, uint32_t m, const uint8_t* predicted, uint8_t* y,
                     uint32_t* rests, uint8_t* escapes) noexcept {
    uint32_t n_escapes = 0;
    for (uint32_t first = 0; first < m; first += kBlock) {
        const uint32_t n = std::min(kBlock, m - first);
        const uint8_t* block = words + first * L::kWordBytes;
        if (!split_block<L>(block, n, predicted + first, y + first, rests + first)) {
            continue;
        }
        for (uint32_t i = 0; i < n; ++i) {
            if (y[first + i] >> kAnsMantissaBits == kEscapeSymbol) {
                escapes[n_escapes++] =
                    static_cast<uint8_t>(L::exponent(L::load(block + i * L::kWordBytes)));
            }
        }
    }
    return n_escapes;
}

template <class L>
uint32_t joined(uint32_t y, uint32_t rest, uint32_t exponent) noexcept {
    return rest >> L::kLowBits << L::kSignAt | exponent << L::kBits.mantissa |
           (y & 15) << L::kLowBits | (rest & L::kLowMask);
}

// Escapes become exponents of the window. Returns whether there was one.
template <class L>
bool merge_block(const uint8_t* y, const uint32_t* rests, uint32_t n, const uint8_t* predicted,
                 uint8_t* words) noexcept {
    uint32_t any = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t k = static_cast<uint32_t>(y[i]) >> kAnsMantissaBits;
        const uint32_t in_window = (predicted[i] - k) & L::kExponentMask;
        any |= k == kEscapeSymbol ? 1 : 0;
        L::store(words + i * L::kWordBytes,
                 joined<L>(y[i], rests[i], k == kZero ? 0 : in_window));
    }
    return any != 0;
}

template <class L>
bool merge_words(const uint8_t* y, const uint32_t* rests, uint32_t m, const uint8_t* predicted,
                 const uint8_t* escapes, uint32_t n_escapes, uint8_t* words) noexcept {
    uint32_t n_found = 0;
    for (uint32_t first = 0; first < m; first += kBlock) {
        const uint32_t n = std::min(kBlock, m - first);
        uint8_t* block = words + first * L::kWordBytes;
        if (!merge_block<L>(y + first, rests + first, n, predicted + first, block)) {
            continue;
        }
        for (uint32_t i = first; i < first + n; ++i) {
            if (y[i] >> kAnsMantissaBits != kEscapeSymbol) {
                continue;
            }
            if (n_found == n_escapes) {
                return false;
            }
            L::store(words + i * L::kWordBytes, joined<L>(y[i], rests[i], escapes[n_found++]));
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
                   uint8_t* y, uint32_t* rests, uint8_t* escapes) noexcept {
    return with_layout(split, [&](auto layout) {
        return split_words<decltype(layout)>(words, m, predicted, y, rests, escapes);
    });
}

bool merge_ans(const uint8_t* y, const uint32_t* rests, uint32_t m, Split split,
               const uint8_t* predicted, const uint8_t* escapes, uint32_t n_escapes,
               uint8_t* words) noexcept {
    return with_layout(split, [&](auto layout) {
        return merge_words<decltype(layout)>(y, rests, m, predicted, escapes, n_escapes, words);
    });
}

void write_fields(const uint32_t* rests, uint32_t m, uint32_t n_bits, uint32_t z,
                  uint8_t* fields) noexcept {
    for (; n_bits >= 8; n_bits -= 8, fields += m) {
        const uint32_t shift = z + n_bits - 8;
        for (uint32_t i = 0; i < m; ++i) {
            fields[i] = static_cast<uint8_t>(rests[i] >> shift);
        }
    }
    const size_t bitmap_bytes = level_bytes(1, m);
    for (uint32_t first = 0; first < m; first += 8) {
        uint8_t low[8] = {};
        for (uint32_t i = 0; i < std::min(8u, m - first); ++i) {
            low[i] = static_cast<uint8_t>(rests[first + i] >> z);
        }
        const uint64_t eight = load_u64le(low);
        for (uint32_t bit = 0; bit < n_bits; ++bit) {
            fields[(n_bits - 1 - bit) * bitmap_bytes + first / 8] = gathered(eight >> bit);
        }
    }
}

void read_fields(const uint8_t* fields, uint32_t m, uint32_t n_bits, uint32_t z,
                 uint32_t* rests) noexcept {
    std::fill_n(rests, m, 0u);
    for (; n_bits >= 8; n_bits -= 8, fields += m) {
        const uint32_t shift = z + n_bits - 8;
        for (uint32_t i = 0; i < m; ++i) {
            rests[i] |= uint32_t{fields[i]} << shift;
        }
    }
    const size_t bitmap_bytes = level_bytes(1, m);
    for (uint32_t first = 0; first < m && n_bits > 0; first += 8) {
        uint64_t eight = 0;
        for (uint32_t bitmap = 0; bitmap < n_bits; ++bitmap) {
            eight = eight << 1 | kSpread[fields[bitmap * bitmap_bytes + first / 8]];
        }
        uint8_t low[8];
        store_u64le(low, eight);
        for (uint32_t i = 0; i < std::min(8u, m - first); ++i) {
            rests[first + i] |= uint32_t{low[i]} << z;
        }
    }
}

}  // namespace ogds
