// The ladder one value at a time: the documentation of the loops, and the twin that every other
// instruction set must match byte for byte.
#include "bytes.h"
#include "ladder_kernels.h"
#include "rest_planes.h"

namespace ogds {
namespace {

uint32_t value_at(const RankPlanes& planes, uint32_t i) noexcept {
    uint32_t value = 0;
    for (uint32_t b = 0; b < 4; ++b) {
        value |= static_cast<uint32_t>((planes.bit[b][i / 64] >> (i % 64)) & 1) << b;
    }
    return value;
}

void put_value(RankPlanes& planes, uint32_t i, uint32_t value) noexcept {
    for (uint32_t b = 0; b < 4; ++b) {
        uint64_t& word = planes.bit[b][i / 64];
        const uint64_t earlier = word & low_bits(i % 64);  // what lies beyond is from older calls
        word = earlier | static_cast<uint64_t>((value >> b) & 1) << (i % 64);
    }
}

template <Split kSplit>
constexpr uint32_t word_bytes() noexcept {
    constexpr SplitBits kBits = split_bits(kSplit);
    constexpr uint32_t kWordBits = kBits.sign + kBits.exponent + kBits.mantissa;
    return kWordBits < 8 ? 1 : kWordBits / 8;
}

// Writes the rest of word i, plane by plane from the top; bitmaps are zero before.
template <uint32_t kRestBits>
void put_rest(uint64_t rest, uint32_t i, uint32_t m, uint8_t* fields) noexcept {
    constexpr FieldPlanes kPlanes = field_planes(kRestBits);
    uint32_t left = kRestBits;
    for (uint32_t p = 0; p < kPlanes.n; ++p) {
        const uint32_t bits = kPlanes.bits[p];
        left -= bits;
        const uint64_t value = rest >> left;
        if (bits == 1) {
            fields[i / 8] = static_cast<uint8_t>(fields[i / 8] | (value & 1) << (i % 8));
        } else {
            store_partial_u64le(fields + i * bits / 8, bits / 8, value);
        }
        fields += plane_bytes(bits, m);
    }
}

template <uint32_t kRestBits>
uint64_t rest_at(const uint8_t* fields, uint32_t i, uint32_t m) noexcept {
    constexpr FieldPlanes kPlanes = field_planes(kRestBits);
    uint64_t rest = 0;
    for (uint32_t p = 0; p < kPlanes.n; ++p) {
        const uint32_t bits = kPlanes.bits[p];
        const uint64_t value = bits == 1 ? (fields[i / 8] >> (i % 8)) & 1u
                                         : load_partial_u64le(fields + i * bits / 8, bits / 8);
        rest = rest << bits | value;
        fields += plane_bytes(bits, m);
    }
    return rest;
}

// FORMAT 7.4, or with a prediction 7.6.
template <Split kSplit>
uint32_t symbol_of(uint32_t exponent, uint32_t i, const LadderTables& tables,
                   const uint8_t* prediction) noexcept {
    if (prediction == nullptr) {
        const uint32_t difference = (tables.emax - exponent) & max_exponent(kSplit);
        return difference < kEscapeSymbol ? difference : kEscapeSymbol;
    }
    const uint32_t difference = (prediction[i] - exponent) & max_exponent(kSplit);
    if (exponent == 0) {
        return kZeroSymbol;
    }
    return difference < kZeroSymbol ? difference : kEscapeSymbol;
}

template <Split kSplit>
uint32_t split(const uint8_t* words, uint32_t m, const LadderTables& tables,
               const uint8_t* prediction, uint8_t* fields, RankPlanes& ranks,
               uint8_t* escapes) noexcept {
    constexpr SplitBits kBits = split_bits(kSplit);
    constexpr uint64_t kMantissaMask = (uint64_t{1} << kBits.mantissa) - 1;
    constexpr uint32_t kRestBits = rest_bits(kSplit);
    __builtin_memset(fields, 0, fields_bytes(kRestBits, m));
    uint32_t n_escapes = 0;
    for (uint32_t i = 0; i < m; ++i) {
        const uint64_t word =
            load_partial_u64le(words + word_bytes<kSplit>() * i, word_bytes<kSplit>());
        const uint64_t top = word >> kBits.mantissa;
        const uint32_t exponent = static_cast<uint32_t>(top) & max_exponent(kSplit);
        const uint64_t sign = kBits.sign == 0 ? 0 : (top >> kBits.exponent) & 1;
        const uint64_t rest = sign << kBits.mantissa | (word & kMantissaMask);
        const uint32_t symbol = symbol_of<kSplit>(exponent, i, tables, prediction);
        put_rest<kRestBits>(rest, i, m, fields);
        put_value(ranks, i, tables.rank_of_symbol[symbol]);
        if (symbol == kEscapeSymbol) {
            store_partial_u64le(escapes + escape_bytes(kSplit) * n_escapes++,
                                escape_bytes(kSplit), exponent);
        }
    }
    return n_escapes;
}

template <Split kSplit>
bool merge(const RankPlanes& ranks, uint32_t m, Slice slice, const LadderTables& tables,
           const uint8_t* prediction, const uint8_t* fields, Escapes& escapes,
           const MergeTarget& target) noexcept {
    constexpr SplitBits kBits = split_bits(kSplit);
    constexpr uint64_t kMantissaMask = (uint64_t{1} << kBits.mantissa) - 1;
    for (uint32_t i = 0; i < slice.n_words; ++i) {
        const uint32_t symbol = tables.symbol_of_rank[value_at(ranks, slice.first + i)];
        uint64_t exponent = (prediction == nullptr ? tables.emax : prediction[i]) - symbol;
        if (symbol == kEscapeSymbol) {
            if (escapes.n == 0) {
                return false;
            }
            exponent = load_partial_u64le(escapes.at, escape_bytes(kSplit));
            escapes.at += escape_bytes(kSplit);
            --escapes.n;
        } else if (symbol == kZeroSymbol && prediction != nullptr) {
            exponent = 0;
        }
        const uint64_t rest = rest_at<rest_bits(kSplit)>(fields, slice.first + i, m);
        const uint64_t sign = tables.sign_slot ? 0 : rest >> kBits.mantissa;
        const uint64_t top = sign << kBits.exponent | (exponent & max_exponent(kSplit));
        store_partial_u64le(target.words + word_bytes<kSplit>() * i, word_bytes<kSplit>(),
                            top << kBits.mantissa | (rest & kMantissaMask));
    }
    return true;
}

uint32_t encode_level(uint32_t width, const RankPlanes& values, uint32_t n, uint8_t* out,
                      RankPlanes& next) noexcept {
    const uint32_t top = (1u << width) - 1;
    const size_t bitmap_bytes = level_bytes(1, n);
    __builtin_memset(out, 0, level_bytes(width, n));
    uint32_t n_next = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t value = value_at(values, i);
        const uint32_t written = value < top ? value : top;
        for (uint32_t b = 0; b < width; ++b) {
            uint8_t& byte = out[b * bitmap_bytes + i / 8];
            byte = static_cast<uint8_t>(byte | ((written >> b) & 1) << (i % 8));
        }
        if (width < 4 && written == top) {
            put_value(next, n_next++, value - top);
        }
    }
    return n_next;
}

LevelResult decode_level(uint32_t width, const uint8_t* in, uint32_t n, const RankPlanes& next,
                         uint32_t n_next, RankPlanes& values) noexcept {
    const uint32_t top = (1u << width) - 1;
    const size_t bitmap_bytes = level_bytes(1, n);
    uint32_t n_taken = 0;
    bool too_large = false;
    for (uint32_t i = 0; i < n; ++i) {
        uint32_t value = 0;
        for (uint32_t b = 0; b < width; ++b) {
            value |= static_cast<uint32_t>((in[b * bitmap_bytes + i / 8] >> (i % 8)) & 1) << b;
        }
        if (width < 4 && value == top) {
            if (n_taken == n_next) {
                return LevelResult::kCountDiffers;
            }
            value += value_at(next, n_taken++);
        }
        too_large = too_large || value > 15;
        put_value(values, i, value & 15);
    }
    if (n_taken != n_next) {
        return LevelResult::kCountDiffers;
    }
    return too_large ? LevelResult::kRankTooLarge : LevelResult::kOk;
}

}  // namespace

const LadderKernels kLadderScalar = {
    {nullptr, split<Split::kBf16>, split<Split::kFp16>, split<Split::kFp32>, split<Split::kFp64>,
     split<Split::kE4m3>, split<Split::kE5m2>, split<Split::kE3m4>, split<Split::kE8m0>,
     split<Split::kE2m1>, split<Split::kE2m3>, split<Split::kE3m2>},
    {nullptr, merge<Split::kBf16>, merge<Split::kFp16>, merge<Split::kFp32>, merge<Split::kFp64>,
     merge<Split::kE4m3>, merge<Split::kE5m2>, merge<Split::kE3m4>, merge<Split::kE8m0>,
     merge<Split::kE2m1>, merge<Split::kE2m3>, merge<Split::kE3m2>},
    encode_level,
    decode_level,
    fill_sign_slot,
    read_sign_slot,
    predict_row};

}  // namespace ogds
