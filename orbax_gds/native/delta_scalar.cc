// Codec 6 one word at a time: the documentation of the loops, and the twin that every other
// instruction set must match byte for byte.
#include <cstring>

#include "delta_words.h"

namespace ogds {
namespace {

void put_rank(RankPlanes& planes, uint32_t i, uint32_t rank) noexcept {
    for (uint32_t b = 0; b < 4; ++b) {
        uint64_t& word = planes.bit[b][i / 64];
        const uint64_t earlier = word & low_bits(i % 64);  // what lies beyond is from older calls
        word = earlier | static_cast<uint64_t>((rank >> b) & 1) << (i % 64);
    }
}

uint32_t rank_at(const RankPlanes& planes, uint32_t i) noexcept {
    uint32_t rank = 0;
    for (uint32_t b = 0; b < 4; ++b) {
        rank |= static_cast<uint32_t>((planes.bit[b][i / 64] >> (i % 64)) & 1) << b;
    }
    return rank;
}

uint32_t class_of(uint64_t z) noexcept {
    return z == 0 ? 0 : 64 - static_cast<uint32_t>(__builtin_clzll(z));
}

void put_bit(LowPlanes& planes, uint32_t plane, uint64_t bit) noexcept {
    const uint32_t i = planes.n_bits[plane]++;
    uint8_t& byte = planes.of[plane][i / 8];
    const uint32_t earlier = i % 8 == 0 ? 0u : byte;
    byte = static_cast<uint8_t>(earlier | (bit & 1) << (i % 8));
}

template <class Word>
uint32_t split(const uint8_t* words, const uint8_t* base, uint32_t m, const DeltaFormat& format,
               const DeltaTables& tables, RankPlanes& ranks, uint8_t* escapes,
               LowPlanes& planes) noexcept {
    using D = DeltaOf<Word>;
    std::memset(planes.n_bits, 0, sizeof planes.n_bits);
    uint32_t n_escapes = 0;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < m; ++i) {
        const Word b = D::load(base, i);
        uint64_t z =
            D::difference(D::load(words, i), b, format.shift, static_cast<Word>(format.flip));
        for (uint32_t k = 0; k < tables.low_bytes; ++k, z >>= 8) {
            planes.low[k][i] = static_cast<uint8_t>(z);
        }
        const uint32_t c = class_of(z);
        const auto exponent =
            static_cast<uint32_t>(b >> format.exponent_shift) & format.exponent_mask;
        const auto distance = static_cast<uint8_t>(expected_class(exponent, tables) - c);
        const uint32_t near = distance < kZeroSymbol ? distance : kEscapeSymbol;
        const uint32_t symbol = c == 0 ? kZeroSymbol : near;
        put_rank(ranks, i, tables.ladder.rank_of_symbol[symbol]);
        if (symbol == kEscapeSymbol) {
            escapes[n_escapes++] = static_cast<uint8_t>(c);
        }
        for (uint32_t plane = 0; plane + 2 <= c; ++plane) {
            put_bit(planes, plane, z >> plane);
        }
        largest = c > largest ? c : largest;
    }
    planes.n = largest < 2 ? 0 : largest - 1;
    return n_escapes;
}

template <class Word>
bool merge(const RankPlanes& ranks, const uint8_t* base, uint32_t m, const DeltaFormat& format,
           const DeltaTables& tables, const uint8_t* escapes, uint32_t n_escapes,
           const LowPlanesView& planes, uint8_t* words) noexcept {
    using D = DeltaOf<Word>;
    uint32_t taken[kMaxLowPlanes] = {};
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < m; ++i) {
        const Word b = D::load(base, i);
        const uint32_t symbol = tables.ladder.symbol_of_rank[rank_at(ranks, i)];
        const auto exponent =
            static_cast<uint32_t>(b >> format.exponent_shift) & format.exponent_mask;
        uint32_t c = static_cast<uint8_t>(expected_class(exponent, tables) - symbol);
        if (symbol == kEscapeSymbol) {
            if (n_taken == n_escapes) {
                return false;
            }
            c = escapes[n_taken++];
        } else if (symbol == kZeroSymbol) {
            c = 0;
        }
        if (c > format.bits - 8u * tables.low_bytes || c > planes.n + 1) {
            return false;
        }
        uint64_t z = c == 0 ? 0 : uint64_t{1} << (c - 1);
        for (uint32_t plane = 0; plane + 2 <= c; ++plane) {
            const uint32_t at = taken[plane]++;
            if (at >= planes.n_bits[plane]) {
                return false;
            }
            z |= static_cast<uint64_t>((planes.of[plane][at / 8] >> (at % 8)) & 1) << plane;
        }
        for (uint32_t k = tables.low_bytes; k-- > 0;) {
            z = z << 8 | planes.low[k][i];
        }
        D::store(words, i, D::word(static_cast<Word>(z), b, format.shift,
                                   static_cast<Word>(format.flip)));
    }
    for (uint32_t plane = 0; plane < planes.n; ++plane) {
        if (taken[plane] != planes.n_bits[plane]) {
            return false;
        }
    }
    return n_taken == n_escapes;
}

}  // namespace

uint32_t split_delta_long(const uint8_t* words, const uint8_t* base, uint32_t m,
                          const DeltaFormat& format, const DeltaTables& tables, RankPlanes& ranks,
                          uint8_t* escapes, LowPlanes& planes) noexcept {
    return split<uint64_t>(words, base, m, format, tables, ranks, escapes, planes);
}

bool merge_delta_long(const RankPlanes& ranks, const uint8_t* base, uint32_t m,
                      const DeltaFormat& format, const DeltaTables& tables,
                      const uint8_t* escapes, uint32_t n_escapes, const LowPlanesView& planes,
                      uint8_t* words) noexcept {
    return merge<uint64_t>(ranks, base, m, format, tables, escapes, n_escapes, planes, words);
}

constinit const DeltaKernels kDeltaScalar = {
    {split<uint8_t>, split<uint16_t>, split<uint32_t>, split_delta_long},
    {merge<uint8_t>, merge<uint16_t>, merge<uint32_t>, merge_delta_long},
};

}  // namespace ogds
