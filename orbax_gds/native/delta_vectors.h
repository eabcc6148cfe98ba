// Codec 6 for any register V (vector_*.h) and any way to take bits (bits_*.h): tiles of 128 words a
// lane. Words of 8 bytes go one by one.
//
// Everything follows from the bit planes of the differences. Which words have a bit in plane j is
// the OR of all planes above it; the bits of these words are extracted, in decoding deposited.
//
// Include only from files of one instruction set. Everything here is in an unnamed namespace: the
// linker must not merge it with a copy that other files were given by other instruction sets.
#pragma once

#include "delta_words.h"
#include "ladder_words.h"

namespace ogds {
namespace {

// What the bytes of a word say of its class: by half a byte, 255 less the number of bits.
struct ClassTables {
    alignas(16) uint8_t low[16];
    alignas(16) uint8_t high[16];

    explicit constexpr ClassTables(uint32_t byte) noexcept : low{}, high{} {
        for (uint32_t half = 0; half < 16; ++half) {
            uint32_t n_bits = 0;
            for (uint32_t left = half; left != 0; left >>= 1) {
                ++n_bits;
            }
            low[half] = static_cast<uint8_t>(half == 0 ? 255 : 255 - 8 * byte - n_bits);
            high[half] = static_cast<uint8_t>(half == 0 ? 255 : 251 - 8 * byte - n_bits);
        }
    }
};

constexpr ClassTables kClassTables[4] = {ClassTables(0), ClassTables(1), ClassTables(2),
                                         ClassTables(3)};

// The bytes of a part of words: 16 of each lane's 128.
template <class V, class Word>
OGDS_IN_REGISTERS void load_bytes(const uint8_t* words, uint32_t q,
                                  typename V::T (&bytes)[sizeof(Word)]) noexcept {
    if constexpr (sizeof(Word) == 1) {
        bytes[0] = V::load(words + 16 * q, kLaneWords);
    } else if constexpr (sizeof(Word) == 2) {
        const Halves<V> halves = load_halves<V>(words + 32 * q);
        bytes[0] = halves.low;
        bytes[1] = halves.high;
    } else {
        typename V::T low[2];
        typename V::T high[2];
        for (uint32_t half = 0; half < 2; ++half) {
            const auto a = V::load(words + 64 * q + 32 * half, 4 * kLaneWords);
            const auto b = V::load(words + 64 * q + 32 * half + 16, 4 * kLaneWords);
            low[half] = V::even16(a, b);
            high[half] = V::odd16(a, b);
        }
        bytes[0] = V::even8(low[0], low[1]);
        bytes[1] = V::odd8(low[0], low[1]);
        bytes[2] = V::even8(high[0], high[1]);
        bytes[3] = V::odd8(high[0], high[1]);
    }
}

template <class V, class Word>
OGDS_IN_REGISTERS void store_bytes(const typename V::T (&bytes)[sizeof(Word)], uint32_t q,
                                   uint8_t* words) noexcept {
    if constexpr (sizeof(Word) == 1) {
        V::store(words + 16 * q, kLaneWords, bytes[0]);
    } else if constexpr (sizeof(Word) == 2) {
        store_halves<V>({bytes[0], bytes[1]}, words + 32 * q);
    } else {
        const typename V::T low[2] = {V::zip_low8(bytes[0], bytes[1]),
                                      V::zip_high8(bytes[0], bytes[1])};
        const typename V::T high[2] = {V::zip_low8(bytes[2], bytes[3]),
                                       V::zip_high8(bytes[2], bytes[3])};
        for (uint32_t half = 0; half < 2; ++half) {
            uint8_t* at = words + 64 * q + 32 * half;
            V::store(at, 4 * kLaneWords, V::zip_low16(low[half], high[half]));
            V::store(at + 16, 4 * kLaneWords, V::zip_high16(low[half], high[half]));
        }
    }
}

template <class Word>
constexpr uint32_t class_of_word(Word z) noexcept {
    return z == 0 ? 0 : 32 - static_cast<uint32_t>(__builtin_clz(z));
}

// The words of a tile and what is expected of them.
template <class V, class Word>
struct DeltaTile {
    using D = DeltaOf<Word>;
    static constexpr uint32_t kWords = V::kBytes * 8;
    static constexpr uint32_t kGroups = kWords / 64;
    static constexpr uint32_t kBits = 8 * sizeof(Word);

    alignas(64) Word z[kWords];
    alignas(64) Word base[kWords];
    alignas(64) uint8_t expected[kWords];
    alignas(64) uint64_t planes[kBits][kGroups];

    void load_base(const uint8_t* words) noexcept {
        auto* to = reinterpret_cast<uint8_t*>(base);
        for (uint32_t i = 0; i < sizeof base; i += V::kBytes) {
            V::store_whole(to + i, V::load_whole(words + i));
        }
    }

    void expect(const DeltaFormat& format, const DeltaTables& tables) noexcept {
        if (!tables.exponents) {
            __builtin_memset(expected, static_cast<uint8_t>(tables.ladder.emax), sizeof expected);
            return;
        }
        const auto emax = static_cast<uint8_t>(tables.ladder.emax);
        const uint8_t floor = tables.floor;
        const uint32_t shift = format.exponent_shift;
        const uint8_t mask = format.exponent_mask;
        for (uint32_t i = 0; i < kWords; ++i) {
            const auto e = static_cast<uint8_t>(static_cast<uint8_t>(base[i] >> shift) & mask);
            const auto cut = e < emax ? e : emax;
            const auto p = static_cast<uint8_t>(emax - cut);
            expected[i] = p > floor ? p : floor;
        }
    }

    // Returns the differences, ORed.
    Word difference(const uint8_t* words, const DeltaFormat& format) noexcept {
        const uint32_t shift = format.shift;
        const auto flip = static_cast<Word>(format.flip);
        Word any = 0;
        for (uint32_t i = 0; i < kWords; ++i) {
            z[i] = D::difference(D::load(words, i), base[i], shift, flip);
            any = static_cast<Word>(any | z[i]);
        }
        return any;
    }

    void join(const DeltaFormat& format, uint8_t* __restrict words) const noexcept {
        const uint32_t shift = format.shift;
        const auto flip = static_cast<Word>(format.flip);
        for (uint32_t i = 0; i < kWords; ++i) {
            D::store(words, i, D::word(z[i], base[i], shift, flip));
        }
    }
};

// --- encoding ------------------------------------------------------------------------------------

// Ranks of a tile's words and, if any has bits below its class, the planes of the differences.
// Returns the plane of the escapes; of each word the class is left in `classes`.
template <class V, class Word>
inline typename V::T rank_tile(DeltaTile<V, Word>& tile, uint32_t largest,
                               const typename V::T& rank_of, const typename V::T (&flips)[4],
                               uint8_t* ranks_out, uint8_t* classes) noexcept {
    constexpr uint32_t kBytes = sizeof(Word);
    using T = typename V::T;
    const auto* z = reinterpret_cast<const uint8_t*>(tile.z);
    const T half = V::splat(0x0F);
    const T zero = V::splat(kZeroSymbol);
    T ranks[8];
    T bytes[kBytes][8];
    for (uint32_t q = 0; q < 8; ++q) {
        T part[kBytes];
        load_bytes<V, Word>(z, q, part);
        T least = V::splat(255);
        for (uint32_t k = 0; k < kBytes; ++k) {
            bytes[k][q] = part[k];
            const T low = V::lookup(V::table(kClassTables[k].low), V::and_(part[k], half));
            const T high = V::lookup(V::table(kClassTables[k].high),
                                     V::and_(V::template right16<4>(part[k]), half));
            least = V::min8(least, V::min8(low, high));
        }
        const T c = V::xor_(least, V::splat(255));
        V::store(classes + 16 * q, kLaneWords, c);
        const T distance = V::sub8(V::load(tile.expected + 16 * q, kLaneWords), c);
        const T cut = V::min8(distance, zero);
        const T symbol = V::sub8(cut, V::equal8(cut, zero));  // 14 and more become 15
        ranks[q] = V::lookup(rank_of, V::select(V::equal8(c, V::splat(0)), zero, symbol));
    }
    T rank_planes[4];
    to_planes4<V>(ranks, rank_planes);
    for (uint32_t b = 0; b < 4; ++b) {
        V::store_whole(ranks_out + sizeof(RankPlanes::bit[0]) * b, rank_planes[b]);
    }
    for (uint32_t k = 0; k < kBytes && 8 * k < largest && largest > 1; ++k) {
        to_planes<V>(bytes[k]);
        for (uint32_t b = 0; b < 8; ++b) {
            V::store_whole(reinterpret_cast<uint8_t*>(tile.planes[8 * k + b]), bytes[k][b]);
        }
    }
    return escapes_of<V>(rank_planes, flips);
}

// Appends bits to each plane. Up to 7 bits of each wait for the rest of their byte; a store of 8
// bytes may write zeros past them, which the next store overwrites.
class LowWriter {
public:
    explicit LowWriter(LowPlanes& planes) noexcept : planes_(planes) {
        __builtin_memset(planes.n_bits, 0, sizeof planes.n_bits);
    }

    void append(uint32_t plane, uint64_t bits, uint32_t n) noexcept {
        const uint32_t before = planes_.n_bits[plane];
        const uint32_t fill = before % 8;
        const uint64_t whole = waiting_[plane] | bits << fill;
        store_u64le(planes_.of[plane] + before / 8, whole);
        planes_.n_bits[plane] = before + n;
        // Whether they fill eight bytes is a matter of chance: no branch.
        const uint32_t end = fill + n;
        const uint64_t below = whole >> (end & 56);
        const uint64_t beyond = (bits >> 1) >> (63 - fill);
        const uint64_t is_full = 0 - static_cast<uint64_t>(end >> 6);
        waiting_[plane] = (below & ~is_full) | (beyond & is_full);
    }

    void finish(uint32_t largest) noexcept {
        planes_.n = largest < 2 ? 0 : largest - 1;
        for (uint32_t plane = 0; plane < planes_.n; ++plane) {
            append(plane, 0, 0);
        }
    }

private:
    LowPlanes& planes_;
    uint64_t waiting_[kMaxLowPlanes] = {};
};

template <class V, class Bits, class Word>
inline void append_low(const DeltaTile<V, Word>& tile, uint32_t largest,
                       LowWriter& writer) noexcept {
    for (uint32_t g = 0; g < tile.kGroups; ++g) {
        uint64_t above = tile.planes[largest - 1][g];
        for (uint32_t plane = largest - 1; plane-- > 0;) {
            const uint64_t bits = tile.planes[plane][g];
            const uint64_t extracted = Bits::extract({bits, 0, 0, 0}, above).b0;
            writer.append(plane, extracted, static_cast<uint32_t>(__builtin_popcountll(above)));
            above |= bits;
        }
    }
}

template <class V, class Bits, class Word>
uint32_t split_delta(const uint8_t* words, const uint8_t* base, uint32_t m,
                     const DeltaFormat& format, const DeltaTables& tables, RankPlanes& ranks,
                     uint8_t* escapes, LowPlanes& planes) noexcept {
    using Tile = DeltaTile<V, Word>;
    constexpr size_t kTileBytes = Tile::kWords * sizeof(Word);
    Tile tile;
    const auto rank_of = V::table(tables.ladder.rank_of_symbol);
    typename V::T flips[4];
    set_flips<V>(tables.ladder.escape_rank, flips);
    LowWriter writer(planes);
    auto* ranks_out = reinterpret_cast<uint8_t*>(&ranks);
    uint32_t n_escapes = 0;
    uint32_t largest = 0;
    const auto split_tile = [&](const uint8_t* tile_words, const uint8_t* tile_base, uint32_t i,
                                uint32_t n) {
        alignas(64) uint8_t classes[Tile::kWords];
        tile.load_base(tile_base);
        const uint32_t of_tile = class_of_word<Word>(tile.difference(tile_words, format));
        tile.expect(format, tables);
        const auto found = rank_tile<V, Word>(tile, of_tile, rank_of, flips, ranks_out + i / 8,
                                              classes);
        if (__builtin_expect(V::any(found), 0)) {
            for_each_bit<V>(found, n, [&](uint32_t at) { escapes[n_escapes++] = classes[at]; });
        }
        if (of_tile > 1) {
            append_low<V, Bits, Word>(tile, of_tile, writer);
        }
        largest = of_tile > largest ? of_tile : largest;
    };
    uint32_t i = 0;
    for (; i + Tile::kWords <= m; i += Tile::kWords) {
        const size_t at = i * sizeof(Word);
        prefetch_words(words + at, kTileBytes);
        split_tile(words + at, base + at, i, Tile::kWords);
    }
    if (i < m) {
        alignas(64) uint8_t last[2][kTileBytes] = {};  // what is not there has not changed
        __builtin_memcpy(last[0], words + i * sizeof(Word), (m - i) * sizeof(Word));
        __builtin_memcpy(last[1], base + i * sizeof(Word), (m - i) * sizeof(Word));
        split_tile(last[0], last[1], i, m - i);
    }
    writer.finish(largest);
    return n_escapes;
}

// --- decoding ------------------------------------------------------------------------------------

// Takes bits from each plane, at any bit position.
class LowReader {
public:
    explicit LowReader(const LowPlanesView& planes) noexcept : planes_(planes) {}

    uint64_t take(uint32_t plane, uint32_t n) noexcept {
        const uint32_t before = taken_[plane];
        const uint32_t skip = before % 8;
        const uint8_t* at = planes_.of[plane] + before / 8;
        taken_[plane] = before + n;
        // Whether they reach into a ninth byte is a matter of chance: no branch.
        return load_u64le(at) >> skip | (uint64_t{at[8]} << 1) << (63 - skip);
    }

    // Whether no plane below `n` was asked for more than it has: by then a tile's bits may be too
    // many, which lie within what can be read.
    bool is_within(uint32_t n) const noexcept {
        bool within = true;
        for (uint32_t plane = 0; plane < n; ++plane) {
            within &= taken_[plane] <= planes_.n_bits[plane];
        }
        return within;
    }

    bool is_finished() const noexcept {
        bool finished = true;
        for (uint32_t plane = 0; plane < planes_.n; ++plane) {
            finished &= taken_[plane] == planes_.n_bits[plane];
        }
        return finished;
    }

private:
    const LowPlanesView& planes_;
    uint32_t taken_[kMaxLowPlanes] = {};
};

// The classes of a tile's words, but for those of escapes, whose plane is returned.
template <class V>
inline typename V::T class_tile(const uint8_t* ranks_in, const typename V::T& symbol_of,
                                const typename V::T (&flips)[4], const uint8_t* expected,
                                uint8_t* classes) noexcept {
    typename V::T rank_planes[4];
    typename V::T ranks[8];
    for (uint32_t b = 0; b < 4; ++b) {
        rank_planes[b] = V::load_whole(ranks_in + sizeof(RankPlanes::bit[0]) * b);
    }
    from_planes4<V>(rank_planes, ranks);
    for (uint32_t q = 0; q < 8; ++q) {
        const auto symbol = V::lookup(symbol_of, ranks[q]);
        const auto c = V::sub8(V::load(expected + 16 * q, kLaneWords), symbol);
        const auto is_zero = V::equal8(symbol, V::splat(kZeroSymbol));
        V::store(classes + 16 * q, kLaneWords, V::select(is_zero, V::splat(0), c));
    }
    return escapes_of<V>(rank_planes, flips);
}

// The words of a group of 64 whose class is c.
template <class V>
inline uint64_t words_of_class(const uint8_t* classes, uint32_t c) noexcept {
    uint64_t words = 0;
    for (uint32_t i = 0; i < 64; i += V::kBytes) {
        words |= V::signs(V::equal8(V::load_whole(classes + i), V::splat(c))) << i;
    }
    return words;
}

template <class V, class Bits, class Word>
inline void take_low(DeltaTile<V, Word>& tile, const uint8_t* classes, uint32_t largest,
                     LowReader& reader) noexcept {
    for (uint32_t g = 0; g < tile.kGroups; ++g) {
        const uint8_t* group = classes + 64 * g;
        uint64_t above = words_of_class<V>(group, largest);
        tile.planes[largest - 1][g] = above;
        for (uint32_t plane = largest - 1; plane-- > 0;) {
            const auto n = static_cast<uint32_t>(__builtin_popcountll(above));
            const uint64_t bits =
                Bits::deposit({reader.take(plane, n), 0, 0, 0}, above).b0;
            const uint64_t of_class = words_of_class<V>(group, plane + 1);
            tile.planes[plane][g] = bits | of_class;
            above |= of_class;
        }
    }
}

// The differences from their planes below `largest`.
template <class V, class Word>
inline void assemble_tile(DeltaTile<V, Word>& tile, uint32_t largest) noexcept {
    constexpr uint32_t kBytes = sizeof(Word);
    typename V::T bytes[kBytes][8];
    for (uint32_t k = 0; k < kBytes; ++k) {
        for (uint32_t b = 0; b < 8; ++b) {
            const uint32_t plane = 8 * k + b;
            const auto* at = reinterpret_cast<const uint8_t*>(tile.planes[plane]);
            bytes[k][b] = plane < largest ? V::load_whole(at) : V::splat(0);
        }
        if (8 * k < largest) {
            from_planes<V>(bytes[k]);
        }
    }
    for (uint32_t q = 0; q < 8; ++q) {
        typename V::T part[kBytes];
        for (uint32_t k = 0; k < kBytes; ++k) {
            part[k] = bytes[k][q];
        }
        store_bytes<V, Word>(part, q, reinterpret_cast<uint8_t*>(tile.z));
    }
}

template <class V, class Bits, class Word>
bool merge_delta(const RankPlanes& ranks, const uint8_t* base, uint32_t m,
                 const DeltaFormat& format, const DeltaTables& tables, const uint8_t* escapes,
                 uint32_t n_escapes, const LowPlanesView& planes, uint8_t* words) noexcept {
    using Tile = DeltaTile<V, Word>;
    constexpr size_t kTileBytes = Tile::kWords * sizeof(Word);
    Tile tile;
    const auto symbol_of = V::table(tables.ladder.symbol_of_rank);
    typename V::T flips[4];
    set_flips<V>(tables.ladder.escape_rank, flips);
    LowReader reader(planes);
    const auto* ranks_in = reinterpret_cast<const uint8_t*>(&ranks);
    const uint32_t most = planes.n + 1 < format.bits ? planes.n + 1 : format.bits;
    uint32_t n_taken = 0;
    const auto merge_tile = [&](const uint8_t* tile_base, uint32_t i, uint32_t n,
                                uint8_t* tile_words) {
        alignas(64) uint8_t classes[Tile::kWords];
        tile.load_base(tile_base);
        tile.expect(format, tables);
        const auto found =
            class_tile<V>(ranks_in + i / 8, symbol_of, flips, tile.expected, classes);
        bool enough = true;
        if (__builtin_expect(V::any(found), 0)) {
            for_each_bit<V>(found, n, [&](uint32_t at) {
                enough = enough && n_taken < n_escapes;
                classes[at] = enough ? escapes[n_taken++] : 0;
            });
        }
        if (n < Tile::kWords) {
            __builtin_memset(classes + n, 0, Tile::kWords - n);
        }
        uint8_t largest = 0;
        for (uint32_t k = 0; k < Tile::kWords; ++k) {
            largest = classes[k] > largest ? classes[k] : largest;
        }
        if (!enough || largest > most) {
            return false;
        }
        if (largest == 0) {
            __builtin_memcpy(tile_words, tile.base, kTileBytes);
            return true;
        }
        take_low<V, Bits, Word>(tile, classes, largest, reader);
        if (!reader.is_within(largest - 1u)) {
            return false;
        }
        assemble_tile<V, Word>(tile, largest);
        tile.join(format, tile_words);
        return true;
    };
    uint32_t i = 0;
    for (; i + Tile::kWords <= m; i += Tile::kWords) {
        const size_t at = i * sizeof(Word);
        if (!merge_tile(base + at, i, Tile::kWords, words + at)) {
            return false;
        }
    }
    if (i < m) {
        alignas(64) uint8_t last[2][kTileBytes] = {};
        __builtin_memcpy(last[0], base + i * sizeof(Word), (m - i) * sizeof(Word));
        if (!merge_tile(last[0], i, m - i, last[1])) {
            return false;
        }
        __builtin_memcpy(words + i * sizeof(Word), last[1], (m - i) * sizeof(Word));
    }
    return n_taken == n_escapes && reader.is_finished();
}

template <class V, class Bits>
constexpr DeltaKernels delta_kernels(SplitDeltaFn split_long, MergeDeltaFn merge_long) noexcept {
    return {{split_delta<V, Bits, uint8_t>, split_delta<V, Bits, uint16_t>,
             split_delta<V, Bits, uint32_t>, split_long},
            {merge_delta<V, Bits, uint8_t>, merge_delta<V, Bits, uint16_t>,
             merge_delta<V, Bits, uint32_t>, merge_long}};
}

}  // namespace
}  // namespace ogds
