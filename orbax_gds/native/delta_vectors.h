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

// So many words are coded together that the planes of all lie in a first-level cache.
constexpr uint32_t kBatchWords = 2048;
constexpr uint32_t kBatchGroups = kBatchWords / 64;

// The differences of a batch of words without their kLow low bytes, and their planes.
template <class V, class Word, uint32_t kLow>
struct DeltaBatch {
    using D = DeltaOf<Word>;
    static constexpr uint32_t kTile = V::kBytes * 8;
    static constexpr uint32_t kTileGroups = kTile / 64;
    static constexpr uint32_t kBits = 8 * (sizeof(Word) - kLow);

    alignas(64) Word z[kBatchWords];
    alignas(64) Word base[kTile];
    alignas(64) uint8_t expected[kTile];
    alignas(64) uint8_t classes[kBatchWords];
    alignas(64) uint64_t planes[kBits][kBatchGroups];

    uint8_t* plane_at(uint32_t plane, uint32_t tile) noexcept {
        return reinterpret_cast<uint8_t*>(planes[plane] + tile * kTileGroups);
    }

    // What is expected of a tile.
    void expect(const uint8_t* tile_base, const DeltaFormat& format,
                const DeltaTables& tables) noexcept {
        if (!tables.exponents) {
            const auto emax = V::splat(tables.ladder.emax);
            for (uint32_t i = 0; i < kTile; i += V::kBytes) {
                V::store_whole(expected + i, emax);
            }
            return;
        }
        if (sizeof(Word) > 1 && format.exponent_shift == 8 * sizeof(Word) - 9) {
            return expect_of_eight_bits(tile_base, tables);
        }
        const auto emax = static_cast<uint8_t>(tables.ladder.emax);
        const uint8_t floor = tables.floor;
        const uint32_t shift = format.exponent_shift;
        const uint8_t mask = format.exponent_mask;
        for (uint32_t i = 0; i < kTile; ++i) {
            const auto e =
                static_cast<uint8_t>(static_cast<uint8_t>(D::load(tile_base, i) >> shift) & mask);
            const auto cut = e < emax ? e : emax;
            const auto p = static_cast<uint8_t>(emax - cut);
            expected[i] = p > floor ? p : floor;
        }
    }

    // The same for exponents of 8 bits below the sign.
    void expect_of_eight_bits(const uint8_t* tile_base, const DeltaTables& tables) noexcept {
        constexpr uint32_t kTop = sizeof(Word) - 1;
        const auto ones = V::splat(255);
        const auto emax = V::splat(tables.ladder.emax);
        const auto not_floor = V::splat(255u - tables.floor);
        for (uint32_t q = 0; q < 8; ++q) {
            typename V::T part[sizeof(Word)];
            load_bytes<V, Word>(tile_base, q, part);
            const auto below = part[kTop == 0 ? 0 : kTop - 1];
            const auto e = V::sub8(V::add8(part[kTop], part[kTop]), V::negative8(below));
            const auto p = V::sub8(emax, V::min8(e, emax));
            const auto larger = V::xor_(V::min8(V::xor_(p, ones), not_floor), ones);
            V::store(expected + 16 * q, kLaneWords, larger);
        }
    }

    // Of `n` words; returns what is above their low bytes, ORed.
    Word difference(const uint8_t* words, const uint8_t* from, uint32_t n,
                    const DeltaFormat& format) noexcept {
        const uint32_t shift = sizeof(Word) == 1 ? format.shift : 0;  // longer words are full
        const auto flip = static_cast<Word>(format.flip);
        Word any = 0;
        for (uint32_t i = 0; i < n; ++i) {
            z[i] = D::difference(D::load(words, i), D::load(from, i), shift, flip);
            any = static_cast<Word>(any | z[i]);
        }
        return static_cast<Word>(any >> 8 * kLow);
    }

    // Writes a tile's words, which may be its base.
    void join(uint32_t tile, const uint8_t* tile_base, const DeltaFormat& format,
              uint8_t* __restrict words) noexcept {
        const uint32_t shift = sizeof(Word) == 1 ? format.shift : 0;  // longer words are full
        const auto flip = static_cast<Word>(format.flip);
        const Word* of_tile = z + tile * kTile;
        auto* copy = reinterpret_cast<uint8_t*>(base);
        for (uint32_t i = 0; i < sizeof base; i += V::kBytes) {
            V::store_whole(copy + i, V::load_whole(tile_base + i));
        }
        for (uint32_t i = 0; i < kTile; ++i) {
            D::store(words, i, D::word(of_tile[i], base[i], shift, flip));
        }
    }
};

// --- encoding ------------------------------------------------------------------------------------

// Ranks of a tile's words, its low bytes and the planes of what is above, as far as any word of the
// batch has bits below its class: `largest` is that of the batch. Returns the plane of the escapes.
template <class V, class Word, uint32_t kLow>
inline typename V::T rank_tile(DeltaBatch<V, Word, kLow>& batch, uint32_t tile, uint32_t largest,
                               const typename V::T& rank_of, const typename V::T (&flips)[4],
                               uint8_t* ranks_out, uint8_t* const* low) noexcept {
    constexpr uint32_t kBytes = sizeof(Word);
    using T = typename V::T;
    const auto* z = reinterpret_cast<const uint8_t*>(batch.z + tile * batch.kTile);
    uint8_t* classes = batch.classes + tile * batch.kTile;
    const T half = V::splat(0x0F);
    const T zero = V::splat(kZeroSymbol);
    T ranks[8];
    T bytes[kBytes][8];
    for (uint32_t q = 0; q < 8; ++q) {
        T part[kBytes];
        load_bytes<V, Word>(z, q, part);
        for (uint32_t k = 0; k < kLow; ++k) {
            V::store(low[k] + 16 * q, kLaneWords, part[k]);
        }
        T least = V::splat(255);
        for (uint32_t k = kLow; k < kBytes; ++k) {
            bytes[k][q] = part[k];
            const ClassTables& tables = kClassTables[k - kLow];
            const T lower = V::lookup(V::table(tables.low), V::and_(part[k], half));
            const T upper = V::lookup(V::table(tables.high),
                                      V::and_(V::template right16<4>(part[k]), half));
            least = V::min8(least, V::min8(lower, upper));
        }
        const T c = V::xor_(least, V::splat(255));
        V::store(classes + 16 * q, kLaneWords, c);
        const T distance = V::sub8(V::load(batch.expected + 16 * q, kLaneWords), c);
        const T cut = V::min8(distance, zero);
        const T symbol = V::sub8(cut, V::equal8(cut, zero));  // 14 and more become 15
        ranks[q] = V::lookup(rank_of, V::select(V::equal8(c, V::splat(0)), zero, symbol));
    }
    T rank_planes[4];
    to_planes4<V>(ranks, rank_planes);
    for (uint32_t b = 0; b < 4; ++b) {
        V::store_whole(ranks_out + sizeof(RankPlanes::bit[0]) * b, rank_planes[b]);
    }
    for (uint32_t k = kLow; k < kBytes && 8 * (k - kLow) < largest && largest > 1; ++k) {
        to_planes<V>(bytes[k]);
        for (uint32_t b = 0; b < 8; ++b) {
            V::store_whole(batch.plane_at(8 * (k - kLow) + b, tile), bytes[k][b]);
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

    // The bits of `plane` of the words in `above`, group by group.
    template <class Bits>
    void append(uint32_t plane, const uint64_t* bits, const uint64_t* above,
                uint32_t n_groups) noexcept {
        uint8_t* const to = planes_.of[plane];
        uint32_t at = planes_.n_bits[plane];
        uint64_t waiting = waiting_[plane];
        for (uint32_t g = 0; g < n_groups; ++g) {
            const uint64_t some = Bits::extract({bits[g], 0, 0, 0}, above[g]).b0;
            const uint32_t fill = at % 8;
            const uint64_t whole = waiting | some << fill;
            store_u64le(to + at / 8, whole);
            const uint32_t end = fill + static_cast<uint32_t>(__builtin_popcountll(above[g]));
            at += end - fill;
            // Whether they fill eight bytes is a matter of chance: no branch.
            const uint64_t is_full = 0 - static_cast<uint64_t>(end >> 6);
            waiting = (whole >> (end & 56) & ~is_full) | ((some >> 1) >> (63 - fill) & is_full);
        }
        planes_.n_bits[plane] = at;
        waiting_[plane] = waiting;
    }

    void finish(uint32_t largest) noexcept {
        planes_.n = largest < 2 ? 0 : largest - 1;
        for (uint32_t plane = 0; plane < planes_.n; ++plane) {
            store_u64le(planes_.of[plane] + planes_.n_bits[plane] / 8, waiting_[plane]);
        }
    }

private:
    LowPlanes& planes_;
    uint64_t waiting_[kMaxLowPlanes] = {};
};

template <class V, class Bits, class Word, uint32_t kLow>
uint32_t split_delta(const uint8_t* words, const uint8_t* base, uint32_t m,
                     const DeltaFormat& format, const DeltaTables& tables, RankPlanes& ranks,
                     uint8_t* escapes, LowPlanes& planes) noexcept {
    using Batch = DeltaBatch<V, Word, kLow>;
    Batch batch;
    const auto rank_of = V::table(tables.ladder.rank_of_symbol);
    typename V::T flips[4];
    set_flips<V>(tables.ladder.escape_rank, flips);
    LowWriter writer(planes);
    auto* ranks_out = reinterpret_cast<uint8_t*>(&ranks);
    uint32_t n_escapes = 0;
    uint32_t largest = 0;
    // Of n words, a multiple of a tile; of which n_real are there.
    const auto split_batch = [&](const uint8_t* from, const uint8_t* from_base, uint32_t first,
                                 uint32_t n, uint32_t n_real) {
        const Word any = batch.difference(from, from_base, n, format);
        const uint32_t of_batch = class_of_word<Word>(any);
        const uint32_t n_tiles = n / Batch::kTile;
        for (uint32_t t = 0; t < n_tiles; ++t) {
            const uint32_t at = t * Batch::kTile;
            uint8_t* const low[] = {planes.low[0] + first + at, planes.low[1] + first + at};
            batch.expect(from_base + at * sizeof(Word), format, tables);
            const auto found = rank_tile<V, Word, kLow>(batch, t, of_batch, rank_of, flips,
                                                        ranks_out + (first + at) / 8, low);
            if (__builtin_expect(V::any(found), 0)) {
                const uint32_t n_there = n_real - at < Batch::kTile ? n_real - at : Batch::kTile;
                for_each_bit<V>(found, n_there, [&](uint32_t i) {
                    escapes[n_escapes++] = batch.classes[at + i];
                });
            }
        }
        if (of_batch > 1) {
            uint64_t above[kBatchGroups];
            __builtin_memcpy(above, batch.planes[of_batch - 1], n / 8);
            for (uint32_t plane = of_batch - 1; plane-- > 0;) {
                writer.append<Bits>(plane, batch.planes[plane], above, n / 64);
                for (uint32_t g = 0; g < n / 64; ++g) {
                    above[g] |= batch.planes[plane][g];
                }
            }
        }
        largest = of_batch > largest ? of_batch : largest;
    };
    uint32_t i = 0;
    for (; m - i >= Batch::kTile;) {
        const uint32_t left = (m - i) / Batch::kTile * Batch::kTile;
        const uint32_t n = left < kBatchWords ? left : kBatchWords;
        const size_t at = i * sizeof(Word);
        prefetch_words(words + at, static_cast<uint32_t>(n * sizeof(Word)));
        split_batch(words + at, base + at, i, n, n);
        i += n;
    }
    if (i < m) {
        alignas(64) uint8_t last[2][Batch::kTile * sizeof(Word)] = {};  // what is not there is equal
        __builtin_memcpy(last[0], words + i * sizeof(Word), (m - i) * sizeof(Word));
        __builtin_memcpy(last[1], base + i * sizeof(Word), (m - i) * sizeof(Word));
        split_batch(last[0], last[1], i, Batch::kTile, m - i);
    }
    writer.finish(largest);
    return n_escapes;
}

// --- decoding ------------------------------------------------------------------------------------

// The words of a group of 64 whose class is c.
template <class V>
inline uint64_t words_of_class(const uint8_t* classes, typename V::T c) noexcept {
    uint64_t words = 0;
    for (uint32_t i = 0; i < 64; i += V::kBytes) {
        words |= V::signs(V::equal8(V::load_whole(classes + i), c)) << i;
    }
    return words;
}

// Takes bits from each plane, at any bit position.
class LowReader {
public:
    explicit LowReader(const LowPlanesView& planes) noexcept : planes_(planes) {}

    // Takes the bits of `plane` of the words in `above` to `bits`, group by group, and adds the
    // words whose class the plane ends to both. Loads at most a batch's bits beyond the plane: false
    // if it has not as many.
    template <class V, class Bits>
    bool take(uint32_t plane, const uint8_t* classes, uint64_t* above, uint64_t* bits,
              uint32_t n_groups) noexcept {
        const uint8_t* const from = planes_.of[plane];
        const auto ends = V::splat(plane + 1);
        uint32_t at = taken_[plane];
        for (uint32_t g = 0; g < n_groups; ++g) {
            const uint64_t words = above[g];
            const uint32_t skip = at % 8;
            const uint8_t* bytes = from + at / 8;
            // Whether they reach into a ninth byte is a matter of chance: no branch.
            const uint64_t some =
                load_u64le(bytes) >> skip | (uint64_t{bytes[8]} << 1) << (63 - skip);
            at += static_cast<uint32_t>(__builtin_popcountll(words));
            const uint64_t of_class = words_of_class<V>(classes + 64 * g, ends);
            bits[g] = Bits::deposit({some, 0, 0, 0}, words).b0 | of_class;
            above[g] = words | of_class;
        }
        taken_[plane] = at;
        return at <= planes_.n_bits[plane];
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

// The differences of a tile from their low bytes and the planes below `largest`.
template <class V, class Word, uint32_t kLow>
inline void assemble_tile(DeltaBatch<V, Word, kLow>& batch, uint32_t tile, uint32_t largest,
                          const uint8_t* const* low) noexcept {
    constexpr uint32_t kBytes = sizeof(Word);
    typename V::T bytes[kBytes][8];
    for (uint32_t k = 0; k < kLow; ++k) {
        for (uint32_t q = 0; q < 8; ++q) {
            bytes[k][q] = V::load(low[k] + 16 * q, kLaneWords);
        }
    }
    for (uint32_t k = kLow; k < kBytes; ++k) {
        for (uint32_t b = 0; b < 8; ++b) {
            const uint32_t plane = 8 * (k - kLow) + b;
            bytes[k][b] = plane < largest ? V::load_whole(batch.plane_at(plane, tile))
                                          : V::splat(0);
        }
        if (8 * (k - kLow) < largest) {
            from_planes<V>(bytes[k]);
        }
    }
    for (uint32_t q = 0; q < 8; ++q) {
        typename V::T part[kBytes];
        for (uint32_t k = 0; k < kBytes; ++k) {
            part[k] = bytes[k][q];
        }
        store_bytes<V, Word>(part, q, reinterpret_cast<uint8_t*>(batch.z + tile * batch.kTile));
    }
}

template <class V, class Bits, class Word, uint32_t kLow>
bool merge_delta(const RankPlanes& ranks, const uint8_t* base, uint32_t m,
                 const DeltaFormat& format, const DeltaTables& tables, const uint8_t* escapes,
                 uint32_t n_escapes, const LowPlanesView& planes, uint8_t* words) noexcept {
    using Batch = DeltaBatch<V, Word, kLow>;
    Batch batch;
    const auto symbol_of = V::table(tables.ladder.symbol_of_rank);
    typename V::T flips[4];
    set_flips<V>(tables.ladder.escape_rank, flips);
    LowReader reader(planes);
    const auto* ranks_in = reinterpret_cast<const uint8_t*>(&ranks);
    const uint32_t n_bits = format.bits - 8 * kLow;
    const uint32_t most = planes.n + 1 < n_bits ? planes.n + 1 : n_bits;
    uint32_t n_taken = 0;
    // Into n words, a multiple of a tile; of which n_real are there.
    const auto merge_batch = [&](const uint8_t* from, const uint8_t* const* low, uint32_t first,
                                 uint32_t n, uint32_t n_real, uint8_t* to) {
        const uint32_t n_tiles = n / Batch::kTile;
        bool enough = true;
        for (uint32_t t = 0; t < n_tiles; ++t) {
            const uint32_t at = t * Batch::kTile;
            batch.expect(from + at * sizeof(Word), format, tables);
            const auto found = class_tile<V>(ranks_in + (first + at) / 8, symbol_of, flips,
                                             batch.expected, batch.classes + at);
            if (__builtin_expect(V::any(found), 0)) {
                const uint32_t n_there = n_real - at < Batch::kTile ? n_real - at : Batch::kTile;
                for_each_bit<V>(found, n_there, [&](uint32_t i) {
                    enough = enough && n_taken < n_escapes;
                    batch.classes[at + i] = enough ? escapes[n_taken++] : 0;
                });
            }
        }
        __builtin_memset(batch.classes + n_real, 0, n - n_real);
        uint8_t largest = 0;
        for (uint32_t k = 0; k < n; ++k) {
            largest = batch.classes[k] > largest ? batch.classes[k] : largest;
        }
        if (!enough || largest > most) {
            return false;
        }
        if (largest > 0) {
            uint64_t above[kBatchGroups];
            for (uint32_t g = 0; g < n / 64; ++g) {
                above[g] = words_of_class<V>(batch.classes + 64 * g, V::splat(largest));
                batch.planes[largest - 1][g] = above[g];
            }
            bool within = true;
            for (uint32_t plane = largest - 1u; plane-- > 0;) {
                within &= reader.template take<V, Bits>(plane, batch.classes, above,
                                                        batch.planes[plane], n / 64);
            }
            if (!within) {
                return false;
            }
        }
        for (uint32_t t = 0; t < n_tiles; ++t) {
            const uint32_t at = t * Batch::kTile;
            const uint8_t* const of_tile[] = {low[0] + at, low[1] + at};
            assemble_tile<V, Word, kLow>(batch, t, largest, of_tile);
            batch.join(t, from + at * sizeof(Word), format, to + at * sizeof(Word));
        }
        return true;
    };
    uint32_t i = 0;
    while (m - i >= Batch::kTile) {
        const uint32_t left = (m - i) / Batch::kTile * Batch::kTile;
        const uint32_t n = left < kBatchWords ? left : kBatchWords;
        const size_t at = i * sizeof(Word);
        const uint8_t* const low[] = {planes.low[0] + i, planes.low[1] + i};
        if (!merge_batch(base + at, low, i, n, n, words + at)) {
            return false;
        }
        i += n;
    }
    if (i < m) {
        alignas(64) uint8_t last[2][Batch::kTile * sizeof(Word)] = {};
        uint8_t last_low[kMaxLowBytes][Batch::kTile] = {};
        for (uint32_t k = 0; k < kLow; ++k) {
            __builtin_memcpy(last_low[k], planes.low[k] + i, m - i);
        }
        __builtin_memcpy(last[0], base + i * sizeof(Word), (m - i) * sizeof(Word));
        const uint8_t* const low[] = {last_low[0], last_low[1]};
        if (!merge_batch(last[0], low, i, Batch::kTile, m - i, last[1])) {
            return false;
        }
        __builtin_memcpy(words + i * sizeof(Word), last[1], (m - i) * sizeof(Word));
    }
    return n_taken == n_escapes && reader.is_finished();
}

// By the number of low bytes.
template <class V, class Bits, class Word>
uint32_t split_any(const uint8_t* words, const uint8_t* base, uint32_t m,
                   const DeltaFormat& format, const DeltaTables& tables, RankPlanes& ranks,
                   uint8_t* escapes, LowPlanes& planes) noexcept {
    if constexpr (sizeof(Word) > 2) {
        if (tables.low_bytes == 2) {
            return split_delta<V, Bits, Word, 2>(words, base, m, format, tables, ranks, escapes,
                                                 planes);
        }
    }
    if constexpr (sizeof(Word) > 1) {
        if (tables.low_bytes == 1) {
            return split_delta<V, Bits, Word, 1>(words, base, m, format, tables, ranks, escapes,
                                                 planes);
        }
    }
    return split_delta<V, Bits, Word, 0>(words, base, m, format, tables, ranks, escapes, planes);
}

template <class V, class Bits, class Word>
bool merge_any(const RankPlanes& ranks, const uint8_t* base, uint32_t m,
               const DeltaFormat& format, const DeltaTables& tables, const uint8_t* escapes,
               uint32_t n_escapes, const LowPlanesView& planes, uint8_t* words) noexcept {
    if constexpr (sizeof(Word) > 2) {
        if (tables.low_bytes == 2) {
            return merge_delta<V, Bits, Word, 2>(ranks, base, m, format, tables, escapes,
                                                 n_escapes, planes, words);
        }
    }
    if constexpr (sizeof(Word) > 1) {
        if (tables.low_bytes == 1) {
            return merge_delta<V, Bits, Word, 1>(ranks, base, m, format, tables, escapes,
                                                 n_escapes, planes, words);
        }
    }
    return merge_delta<V, Bits, Word, 0>(ranks, base, m, format, tables, escapes, n_escapes,
                                         planes, words);
}

template <class V, class Bits>
constexpr DeltaKernels delta_kernels(SplitDeltaFn split_long, MergeDeltaFn merge_long) noexcept {
    return {{split_any<V, Bits, uint8_t>, split_any<V, Bits, uint16_t>,
             split_any<V, Bits, uint32_t>, split_long},
            {merge_any<V, Bits, uint8_t>, merge_any<V, Bits, uint16_t>,
             merge_any<V, Bits, uint32_t>, merge_long}};
}

}  // namespace
}  // namespace ogds
