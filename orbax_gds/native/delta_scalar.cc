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

void put_bit(LowBits& below, uint32_t plane, uint64_t bit) noexcept {
    const uint32_t i = below.n_bits[plane]++;
    uint8_t& byte = below.of[plane][i / 8];
    const uint32_t earlier = i % 8 == 0 ? 0u : byte;
    byte = static_cast<uint8_t>(earlier | (bit & 1) << (i % 8));
}

template <class Word>
uint32_t split(const uint8_t* words, const uint8_t* base, uint32_t m, const DeltaFormat& format,
               const DeltaTables& tables, RankPlanes& ranks, uint8_t* escapes,
               LowBits& below) noexcept {
    using D = DeltaOf<Word>;
    const uint32_t low_bytes = tables.low_bytes;
    const size_t escape_bytes = sizeof(Word) - low_bytes;
    std::memset(below.n_bits, 0, sizeof below.n_bits);
    uint32_t n_escapes = 0;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < m; ++i) {
        const Word b = D::load(base, i);
        const Word z =
            D::difference(D::load(words, i), b, format.shift, static_cast<Word>(format.flip));
        std::memcpy(below.low + size_t{i} * low_bytes, &z, low_bytes);
        const uint64_t y = D::above(z, low_bytes);
        const uint32_t k = bits_below(exponent_of(b, format), tables);
        const uint64_t q = y >> k;
        const auto symbol = static_cast<uint32_t>(q < kEscapeSymbol ? q : kEscapeSymbol);
        put_rank(ranks, i, tables.ladder.rank_of_symbol[symbol]);
        if (symbol == kEscapeSymbol) {
            std::memcpy(escapes + escape_bytes * n_escapes++, &y, escape_bytes);
        }
        for (uint32_t plane = 0; plane < k; ++plane) {
            put_bit(below, plane, y >> plane);
        }
        largest = k > largest ? k : largest;
    }
    below.n = largest;
    return n_escapes;
}

template <class Word>
bool merge(const RankPlanes& ranks, const uint8_t* base, uint32_t m, const DeltaFormat& format,
           const DeltaTables& tables, const uint8_t* escapes, uint32_t n_escapes,
           const LowBitsView& below, uint8_t* words, bool) noexcept {
    using D = DeltaOf<Word>;
    const uint32_t low_bytes = tables.low_bytes;
    const size_t escape_bytes = sizeof(Word) - low_bytes;
    uint32_t taken[kMaxLowPlanes] = {};
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < m; ++i) {
        const Word b = D::load(base, i);
        const uint32_t k = bits_below(exponent_of(b, format), tables);
        if (k > below.n) {
            return false;
        }
        const uint32_t symbol = tables.ladder.symbol_of_rank[rank_at(ranks, i)];
        uint64_t y = uint64_t{symbol} << k;
        for (uint32_t plane = 0; plane < k; ++plane) {
            const uint32_t at = taken[plane]++;
            if (at >= below.n_bits[plane]) {
                return false;
            }
            y |= static_cast<uint64_t>((below.of[plane][at / 8] >> (at % 8)) & 1) << plane;
        }
        if (symbol == kEscapeSymbol) {
            if (n_taken == n_escapes) {
                return false;
            }
            y = 0;
            std::memcpy(&y, escapes + escape_bytes * n_taken++, escape_bytes);
        }
        if (y > D::largest(format.bits, low_bytes)) {
            return false;
        }
        Word z = D::with_low(static_cast<Word>(y), low_bytes);
        std::memcpy(&z, below.low + size_t{i} * low_bytes, low_bytes);
        D::store(words, i, D::word(z, b, format.shift, static_cast<Word>(format.flip)));
    }
    for (uint32_t plane = 0; plane < below.n; ++plane) {
        if (taken[plane] != below.n_bits[plane]) {
            return false;
        }
    }
    return n_taken == n_escapes;
}

void decay_words(const uint8_t* base, uint32_t n, uint32_t decay, uint8_t* to) noexcept {
    using D = DeltaOf<uint32_t>;
    for (uint32_t i = 0; i < n; ++i) {
        D::store(to, i, decayed(D::load(base, i), decay));
    }
}

}  // namespace

uint32_t split_delta_long(const uint8_t* words, const uint8_t* base, uint32_t m,
                          const DeltaFormat& format, const DeltaTables& tables, RankPlanes& ranks,
                          uint8_t* escapes, LowBits& below) noexcept {
    return split<uint64_t>(words, base, m, format, tables, ranks, escapes, below);
}

bool merge_delta_long(const RankPlanes& ranks, const uint8_t* base, uint32_t m,
                      const DeltaFormat& format, const DeltaTables& tables,
                      const uint8_t* escapes, uint32_t n_escapes, const LowBitsView& below,
                      uint8_t* words, bool past_caches) noexcept {
    return merge<uint64_t>(ranks, base, m, format, tables, escapes, n_escapes, below, words,
                           past_caches);
}

constinit const DeltaKernels kDeltaScalar = {
    {split<uint8_t>, split<uint16_t>, split<uint32_t>, split_delta_long},
    {merge<uint8_t>, merge<uint16_t>, merge<uint32_t>, merge_delta_long},
    decay_words,
};

}  // namespace ogds
