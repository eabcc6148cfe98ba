// The ladder one value at a time: the documentation of the loops, and the twin that every other
// instruction set must match byte for byte.
#include "bytes.h"
#include "ladder_kernels.h"

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

// The top 16 bits of a bf16 or fp32 word hold sign, exponent and the mantissa's top 7 bits.
uint32_t split_one(uint32_t top, const LadderTables& tables, uint8_t* s, RankPlanes& ranks,
                   uint32_t i, uint8_t* escapes, uint32_t n_escapes) noexcept {
    s[i] = static_cast<uint8_t>(((top >> 8) & 0x80) | (top & 0x7F));
    const auto exponent = static_cast<uint8_t>(top >> 7);
    const auto difference = static_cast<uint8_t>(tables.emax - exponent);
    const uint8_t symbol = difference < kEscapeSymbol ? difference : kEscapeSymbol;
    put_value(ranks, i, tables.rank_of_symbol[symbol]);
    if (symbol == kEscapeSymbol) {
        escapes[n_escapes++] = exponent;
    }
    return n_escapes;
}

uint32_t split_bf16(const uint8_t* words, uint32_t m, const LadderTables& tables, uint8_t* planes,
                    RankPlanes& ranks, uint8_t* escapes) noexcept {
    uint32_t n_escapes = 0;
    for (uint32_t i = 0; i < m; ++i) {
        const uint32_t top = load_u16le(words + 2 * i);
        n_escapes = split_one(top, tables, planes, ranks, i, escapes, n_escapes);
    }
    return n_escapes;
}

uint32_t split_fp32(const uint8_t* words, uint32_t m, const LadderTables& tables, uint8_t* planes,
                    RankPlanes& ranks, uint8_t* escapes) noexcept {
    uint8_t* low = planes + m;
    uint32_t n_escapes = 0;
    for (uint32_t i = 0; i < m; ++i) {
        const uint32_t word = load_u32le(words + 4 * i);
        store_u16le(low + 2 * i, static_cast<uint16_t>(word));
        n_escapes = split_one(word >> 16, tables, planes, ranks, i, escapes, n_escapes);
    }
    return n_escapes;
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

// Finds the exponent of word i and joins it with its s byte to the top 16 bits of the word.
bool merge_one(const RankPlanes& ranks, uint32_t i, const LadderTables& tables, const uint8_t* s,
               const uint8_t* escapes, uint32_t n_escapes, uint32_t& n_taken,
               uint32_t& top) noexcept {
    const uint32_t rank = value_at(ranks, i);
    uint32_t exponent = tables.exponent_of_rank[rank];
    if (rank == tables.escape_rank) {
        if (n_taken == n_escapes) {
            return false;
        }
        exponent = escapes[n_taken++];
    }
    top = (s[i] & 0x80u) << 8 | exponent << 7 | (s[i] & 0x7Fu);
    return true;
}

bool merge_bf16(const RankPlanes& ranks, uint32_t m, const LadderTables& tables,
                const uint8_t* planes, const uint8_t* escapes, uint32_t n_escapes,
                uint8_t* words) noexcept {
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < m; ++i) {
        uint32_t top = 0;
        if (!merge_one(ranks, i, tables, planes, escapes, n_escapes, n_taken, top)) {
            return false;
        }
        store_u16le(words + 2 * i, static_cast<uint16_t>(top));
    }
    return n_taken == n_escapes;
}

bool merge_fp32(const RankPlanes& ranks, uint32_t m, const LadderTables& tables,
                const uint8_t* planes, const uint8_t* escapes, uint32_t n_escapes,
                uint8_t* words) noexcept {
    const uint8_t* low = planes + m;
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < m; ++i) {
        uint32_t top = 0;
        if (!merge_one(ranks, i, tables, planes, escapes, n_escapes, n_taken, top)) {
            return false;
        }
        store_u32le(words + 4 * i, top << 16 | load_u16le(low + 2 * i));
    }
    return n_taken == n_escapes;
}

}  // namespace

const LadderKernels kLadderScalar = {split_bf16,   split_fp32, encode_level,
                                     decode_level, merge_bf16, merge_fp32};

}  // namespace ogds
