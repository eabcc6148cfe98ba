// Codec 6 for any register V (vector_*.h) and any way to take bits (bits_*.h): tiles of 128 words a
// lane. Words of 8 bytes go one by one.
//
// y of a word is q 2^k + r with r < 2^k: q becomes a rank of the ladder's levels, r bits of planes.
// How many bits r has follows from the base alone, so which words have a bit in plane j is known,
// as a plane, before anything is decoded; the bits of these words are extracted, in decoding
// deposited.
//
// Include only from files of one instruction set. Everything here is in an unnamed namespace: the
// linker must not merge it with a copy that other files were given by other instruction sets.
#pragma once

#include "delta_batch.h"

namespace ogds {
namespace {

// By k: 2^k and 2^(7 - k).
alignas(16) constexpr uint8_t kScales[16] = {1, 2, 4, 8, 16, 32, 64, 128};
alignas(16) constexpr uint8_t kInverseScales[16] = {128, 64, 32, 16, 8, 4, 2, 1};

// Which words have more than j bits, of planes of their number of bits.
template <class V>
OGDS_IN_REGISTERS void planes_of_bits(const typename V::T (&k)[4],
                                      typename V::T (&has)[kMaxLowPlanes]) noexcept {
    const auto either = V::or_(k[0], k[1]);
    const auto both = V::and_(k[0], k[1]);
    has[0] = V::or_(either, k[2]);
    has[1] = V::or_(k[1], k[2]);
    has[2] = V::or_(both, k[2]);
    has[3] = k[2];
    has[4] = V::and_(either, k[2]);
    has[5] = V::and_(k[1], k[2]);
    has[6] = V::and_(both, k[2]);
}

// --- encoding ------------------------------------------------------------------------------------

// Ranks of a tile's words, of which n are there, and the planes of what is below their symbols; in
// those a bit of a word that has none may be set. Returns the plane of the escapes.
template <class V, class Word, uint32_t kLow>
inline typename V::T rank_tile(Differences<V, Word, kLow>& differences,
                               BitsBelow<V, Word>& bits_below, const uint8_t* words,
                               const uint8_t* base, uint32_t n,
                               BelowBatch<V>& batch, uint32_t tile, typename V::T& most_below,
                               const typename V::T& rank_of, const typename V::T (&flips)[4],
                               uint8_t* ranks_out, uint8_t* low) noexcept {
    using T = typename V::T;
    const T inverse_scales = V::table(kInverseScales);
    const T none = V::splat(0);
    T ranks[8];
    T rests[8];
    T ks[8];
    T most = none;
    const auto& of_tile = differences.of(words, base);
    bits_below.each(base, n, [&](uint32_t q, T k) __attribute__((always_inline)) {
        T y[2];
        rests[q] = of_tile.split(q, y, low);
        ks[q] = k;
        most = V::max8(most, k);
        // 2 y 2^(15 - k) div 2^16; y of more than 15 bits are all escapes.
        const T inverse = V::lookup(inverse_scales, k);
        const T symbol = V::narrow16(V::upper16(V::twice16(y[0]), V::zip_low8(none, inverse)),
                                     V::upper16(V::twice16(y[1]), V::zip_high8(none, inverse)));
        ranks[q] = V::lookup(rank_of, V::min8(symbol, V::splat(kEscapeSymbol)));
    });
    T rank_planes[4];
    to_planes4<V>(ranks, rank_planes);
    for (uint32_t b = 0; b < 4; ++b) {
        V::store_whole(ranks_out + sizeof(RankPlanes::bit[0]) * b, rank_planes[b]);
    }
    const auto store = [&](const T(&has)[kMaxLowPlanes], const T* bits) {
        for (uint32_t plane = 0; plane < kMaxLowPlanes; ++plane) {
            V::store_whole(batch.tile_of(batch.has[plane], tile), has[plane]);
            V::store_whole(batch.tile_of(batch.bits[plane], tile), bits[plane]);
        }
    };
    if (V::any(most)) {
        T k_planes[4];
        T has[kMaxLowPlanes];
        to_planes4<V>(ks, k_planes);
        planes_of_bits<V>(k_planes, has);
        to_planes<V>(rests);
        store(has, rests);
        most_below = V::max8(most_below, most);
    } else {
        const T nowhere[kMaxLowPlanes] = {none, none, none, none, none, none, none};
        store(nowhere, nowhere);
    }
    return escapes_of<V>(rank_planes, flips);
}

// Writes y of the words at those places. They are brought together first, so that a compiler takes
// differences of several at once.
template <class Word, uint32_t kLow>
inline void write_escapes(const uint8_t* words, const uint8_t* base, const EscapePlaces& places,
                          const DeltaFormat& format, uint8_t* to) noexcept {
    using D = DeltaOf<Word>;
    constexpr uint32_t kBytes = sizeof(Word) - kLow;
    const uint32_t n = places.n;
    const auto flip = static_cast<Word>(format.flip);
    const uint32_t shift = sizeof(Word) > 1 ? 0 : format.shift;
    Word here[kBatchWords];
    Word before[kBatchWords];
    for (uint32_t i = 0; i < n; ++i) {
        here[i] = D::load(words, places.at[i]);
        before[i] = D::load(base, places.at[i]);
    }
    for (uint32_t i = 0; i < n; ++i) {
        const Word z = D::difference(here[i], before[i], shift, flip);
        store_bytes<kBytes>(to + size_t{kBytes} * i, D::above(z, kLow));
    }
}

template <class V, class Bits, class Word, uint32_t kLow>
uint32_t split_delta(const uint8_t* words, const uint8_t* base, uint32_t m,
                     const DeltaFormat& format, const DeltaTables& tables, RankPlanes& ranks,
                     uint8_t* escapes, LowBits& below) noexcept {
    constexpr uint32_t kTile = BelowBatch<V>::kTile;
    constexpr uint32_t kEscapeBytes = sizeof(Word) - kLow;
    BelowBatch<V> batch;
    BitsBelow<V, Word> bits_below(format, tables);
    Differences<V, Word, kLow> differences(format);
    EscapePlaces places;
    const auto rank_of = V::table(tables.ladder.rank_of_symbol);
    typename V::T flips[4];
    set_flips<V>(tables.ladder.escape_rank, flips);
    LowWriter writer(below);
    auto* ranks_out = reinterpret_cast<uint8_t*>(&ranks);
    uint32_t n_escapes = 0;
    uint32_t n_planes = 0;
    // Of n words, a multiple of a tile; of which n_real are there.
    const auto split_batch = [&](const uint8_t* from, const uint8_t* from_base, uint32_t first,
                                 uint32_t n, uint32_t n_real) {
        auto most_below = V::splat(0);
        auto any_escape = V::splat(0);
        for (uint32_t at = 0; at < n; at += kTile) {
            const uint8_t* tile = from + at * sizeof(Word);
            const uint8_t* tile_base = from_base + at * sizeof(Word);
            const uint32_t n_there = n_real - at < kTile ? n_real - at : kTile;
            prefetch_words(tile, uint32_t{kTile * sizeof(Word)});
            const auto found = rank_tile<V, Word, kLow>(
                differences, bits_below, tile, tile_base, n_there, batch, at / kTile, most_below,
                rank_of, flips, ranks_out + (first + at) / 8,
                below.low + size_t{first + at} * kLow);
            V::store_whole(batch.tile_of(batch.escapes, at / kTile), found);
            any_escape = V::or_(any_escape, found);
        }
        if (V::any(any_escape)) {
            find_places(batch.escapes, n_real, false, places);
            write_escapes<Word, kLow>(from, from_base, places, format,
                                      escapes + size_t{kEscapeBytes} * n_escapes);
            n_escapes += places.n;
        }
        const uint32_t of_batch = most_of<V>(most_below);
        writer.append<Bits>(of_batch, batch, n / 64);
        n_planes = of_batch > n_planes ? of_batch : n_planes;
    };
    uint32_t i = 0;
    while (m - i >= kTile) {
        const uint32_t left = (m - i) / kTile * kTile;
        const uint32_t n = left < kBatchWords ? left : kBatchWords;
        const size_t at = i * sizeof(Word);
        split_batch(words + at, base + at, i, n, n);
        i += n;
    }
    if (i < m) {
        alignas(64) uint8_t last[2][kTile * sizeof(Word)] = {};  // what is not there is equal
        __builtin_memcpy(last[0], words + i * sizeof(Word), (m - i) * sizeof(Word));
        __builtin_memcpy(last[1], base + i * sizeof(Word), (m - i) * sizeof(Word));
        split_batch(last[0], last[1], i, kTile, m - i);
    }
    writer.finish(n_planes);
    return n_escapes;
}

// --- decoding ------------------------------------------------------------------------------------

// Which words of a tile have a bit in which plane; returns the most bits of the parts.
template <class V, class Word>
inline typename V::T place_tile(BitsBelow<V, Word>& bits_below, const uint8_t* base, uint32_t n,
                                BelowBatch<V>& batch, uint32_t tile) noexcept {
    using T = typename V::T;
    const T scales = V::table(kScales);
    T ks[8];
    T most = V::splat(0);
    bits_below.each(base, n, [&](uint32_t q, T k) __attribute__((always_inline)) {
        V::store_whole(batch.scales + tile * batch.kTile + V::kBytes * q, V::lookup(scales, k));
        most = V::max8(most, k);
        ks[q] = k;
    });
    T k_planes[4];
    T has[kMaxLowPlanes];
    to_planes4<V>(ks, k_planes);
    planes_of_bits<V>(k_planes, has);
    for (uint32_t plane = 0; plane < kMaxLowPlanes; ++plane) {
        V::store_whole(batch.tile_of(batch.has[plane], tile), has[plane]);
    }
    return most;
}

// The words of a batch that are escapes, found before its base is overwritten.
template <class Word>
struct Patches {
    EscapePlaces places;
    Word words[kBatchWords];

    void apply(uint8_t* to) const noexcept {
        for (uint32_t i = 0; i < places.n; ++i) {
            DeltaOf<Word>::store(to, places.at[i], words[i]);
        }
    }
};

template <class V, class Bits, class Word, uint32_t kLow>
bool merge_delta(const RankPlanes& ranks, const uint8_t* base, uint32_t m,
                 const DeltaFormat& format, const DeltaTables& tables, const uint8_t* escapes,
                 uint32_t n_escapes, const LowBitsView& below, uint8_t* words,
                 bool past_caches) noexcept {
    using D = DeltaOf<Word>;
    using T = typename V::T;
    constexpr uint32_t kTile = BelowBatch<V>::kTile;
    constexpr uint32_t kEscapeBytes = sizeof(Word) - kLow;
    BelowBatch<V> batch;
    BitsBelow<V, Word> bits_below(format, tables);
    Differences<V, Word, kLow> differences(format);
    Patches<Word> patches;
    alignas(16) uint8_t symbol_bytes[16];
    __builtin_memcpy(symbol_bytes, tables.ladder.symbol_of_rank, 16);
    symbol_bytes[tables.ladder.escape_rank] = 0;
    const T symbol_of = V::table(symbol_bytes);
    T flips[4];
    set_flips<V>(tables.ladder.escape_rank, flips);
    const bool few_escapes = n_escapes < m / kWordsAnEscape;
    LowReader reader(below, m);
    const auto* ranks_in = reinterpret_cast<const uint8_t*>(&ranks);
    uint32_t n_taken = 0;
    uint32_t of_batch = 0;  // planes
    constexpr bool kIsFull = sizeof(Word) > 1;  // words fill their containers
    const uint32_t shift = kIsFull ? 0 : format.shift;
    bool fits = true;
    const auto load_ranks = [&](uint32_t place, T (&rank_planes)[4]) {
        for (uint32_t b = 0; b < 4; ++b) {
            rank_planes[b] =
                V::load_whole(ranks_in + sizeof(RankPlanes::bit[0]) * b + place / 8);
        }
    };
    // Of a batch; false if there are fewer.
    const auto find_patches = [&](const uint8_t* from, const uint8_t* low, uint32_t first,
                                  uint32_t n) {
        T any = V::splat(0);
        for (uint32_t at = 0; at < n; at += kTile) {
            T rank_planes[4];
            load_ranks(first + at, rank_planes);
            const T found = escapes_of<V>(rank_planes, flips);
            V::store_whole(batch.tile_of(batch.escapes, at / kTile), found);
            any = V::or_(any, found);
        }
        if (few_escapes && !V::any(any)) {
            patches.places.n = 0;
            return true;
        }
        find_places(batch.escapes, n, few_escapes, patches.places);
        const uint32_t n_found = patches.places.n;
        if (n_found > n_escapes - n_taken) {
            return false;
        }
        for (uint32_t i = 0; i < n_found; ++i) {
            const uint32_t at = patches.places.at[i];
            const Word y =
                load_bytes<Word, kEscapeBytes>(escapes + size_t{kEscapeBytes} * n_taken++);
            fits &= kIsFull || y <= D::largest(format.bits, kLow);
            const auto z = static_cast<Word>(D::with_low(y, kLow) |
                                             load_bytes<Word, kLow>(low + size_t{kLow} * at));
            patches.words[i] =
                D::word(z, D::load(from, at), shift, static_cast<Word>(format.flip));
        }
        return true;
    };
    const auto merge_tile = [&](const uint8_t* tile_base, const uint8_t* low, uint32_t tile,
                                uint32_t place, uint32_t n_there, uint8_t* to) {
        T rank_planes[4];
        T parts[8];
        T rests[8];
        load_ranks(place, rank_planes);
        for (uint32_t plane = 0; plane < 8; ++plane) {
            rests[plane] = plane < of_batch
                               ? V::load_whole(batch.tile_of(batch.bits[plane % kMaxLowPlanes],
                                                             tile))
                               : V::splat(0);
        }
        if (of_batch > 0) {
            from_planes<V>(rests);
        }
        from_planes4<V>(rank_planes, parts);
        auto&& joining = differences.into(to, tile_base);
        const uint8_t* const scales = batch.scales + tile * kTile;
        const T symbols = symbol_of;  // as of `joining`
        for (uint32_t q = 0; q < 8; ++q) {
            const T scale = V::load_whole(scales + V::kBytes * q);
            const T symbol = V::lookup(symbols, parts[q]);
            const T y[2] = {V::product_low8(scale, symbol, rests[q]),
                            V::product_high8(scale, symbol, rests[q])};
            joining.join(q, y, low);
        }
        differences.finish(joining, n_there, batch.escapes + tile * (kTile / 64));
    };
    // Into n words, a multiple of a tile; of which n_real are there.
    const auto merge_batch = [&](const uint8_t* from, const uint8_t* low, uint32_t first,
                                 uint32_t n, uint32_t n_real, uint8_t* to) {
        // Without exponents a full batch is as the first.
        if (tables.exponents || first == 0 || n_real < n) {
            T most_below = V::splat(0);
            for (uint32_t at = 0; at < n; at += kTile) {
                const uint32_t n_there = n_real - at < kTile ? n_real - at : kTile;
                most_below = V::max8(most_below, place_tile(bits_below, from + at * sizeof(Word),
                                                            n_there, batch, at / kTile));
            }
            of_batch = most_of<V>(most_below);
        }
        if (of_batch > below.n) {
            return false;
        }
        bool within = true;
        for (uint32_t plane = 0; plane < of_batch; ++plane) {
            within &= reader.template take<Bits>(plane, batch.has[plane], batch.bits[plane],
                                                 n / 64);
        }
        if (!within || !find_patches(from, low, first, n_real)) {
            return false;
        }
        for (uint32_t at = 0; at < n; at += kTile) {
            merge_tile(from + at * sizeof(Word), low + size_t{at} * kLow, at / kTile, first + at,
                       n_real - at < kTile ? n_real - at : kTile,
                       to + at * sizeof(Word));
        }
        patches.apply(to);
        return fits;
    };
    alignas(64) uint8_t staged[kBatchWords * sizeof(Word)];
    uint32_t i = 0;
    while (m - i >= kTile) {
        const uint32_t left = (m - i) / kTile * kTile;
        const uint32_t n = left < kBatchWords ? left : kBatchWords;
        const size_t at = i * sizeof(Word);
        uint8_t* const to = past_caches ? staged : words + at;
        if (!merge_batch(base + at, below.low + size_t{i} * kLow, i, n, n, to)) {
            return false;
        }
        if (past_caches) {
            stream_group<V>(words + at, staged, static_cast<uint32_t>(n * sizeof(Word)));
        }
        i += n;
    }
    if (i < m) {
        alignas(64) uint8_t last[2][kTile * sizeof(Word)] = {};
        uint8_t last_low[kTile * kLow + 1] = {};
        __builtin_memcpy(last_low, below.low + size_t{i} * kLow, size_t{m - i} * kLow);
        __builtin_memcpy(last[0], base + i * sizeof(Word), (m - i) * sizeof(Word));
        if (!merge_batch(last[0], last_low, i, kTile, m - i, last[1])) {
            return false;
        }
        __builtin_memcpy(words + i * sizeof(Word), last[1], (m - i) * sizeof(Word));
    }
    V::fence();
    return n_taken == n_escapes && reader.is_finished() && differences.fit();
}

template <class V>
void decay_words(const uint8_t* base, uint32_t n, uint32_t decay, uint8_t* to) noexcept {
    using D = DeltaOf<uint32_t>;
    using U = Units<V, uint32_t>;
    constexpr uint32_t kWords = V::kBytes / sizeof(uint32_t);
    const auto mask = U::splat(0x3FFF);
    const auto one = U::splat(1u << 14);
    const auto decays = U::splat(decay);
    uint32_t i = 0;
    for (; n - i >= kWords; i += kWords) {
        const auto words = V::load_whole(base + i * sizeof(uint32_t));
        const auto mantissas = V::or_(V::and_(V::template right32<9>(words), mask), one);
        const auto lost = V::rounded_product16(mantissas, decays);
        V::store_whole(to + i * sizeof(uint32_t), V::sub32(words, lost));
    }
    for (; i < n; ++i) {
        D::store(to, i, decayed(D::load(base, i), decay));
    }
}

// By the number of low bytes.
template <class V, class Bits, class Word>
uint32_t split_any(const uint8_t* words, const uint8_t* base, uint32_t m,
                   const DeltaFormat& format, const DeltaTables& tables, RankPlanes& ranks,
                   uint8_t* escapes, LowBits& below) noexcept {
    if constexpr (sizeof(Word) > 2) {
        if (tables.low_bytes == 2) {
            return split_delta<V, Bits, Word, 2>(words, base, m, format, tables, ranks, escapes,
                                                 below);
        }
    }
    if constexpr (sizeof(Word) > 1) {
        if (tables.low_bytes == 1) {
            return split_delta<V, Bits, Word, 1>(words, base, m, format, tables, ranks, escapes,
                                                 below);
        }
    }
    return split_delta<V, Bits, Word, 0>(words, base, m, format, tables, ranks, escapes, below);
}

template <class V, class Bits, class Word>
bool merge_any(const RankPlanes& ranks, const uint8_t* base, uint32_t m,
               const DeltaFormat& format, const DeltaTables& tables, const uint8_t* escapes,
               uint32_t n_escapes, const LowBitsView& below, uint8_t* words,
               bool past_caches) noexcept {
    if constexpr (sizeof(Word) > 2) {
        if (tables.low_bytes == 2) {
            return merge_delta<V, Bits, Word, 2>(ranks, base, m, format, tables, escapes,
                                                 n_escapes, below, words, past_caches);
        }
    }
    if constexpr (sizeof(Word) > 1) {
        if (tables.low_bytes == 1) {
            return merge_delta<V, Bits, Word, 1>(ranks, base, m, format, tables, escapes,
                                                 n_escapes, below, words, past_caches);
        }
    }
    return merge_delta<V, Bits, Word, 0>(ranks, base, m, format, tables, escapes, n_escapes,
                                         below, words, past_caches);
}

template <class V, class Bits>
constexpr DeltaKernels delta_kernels(SplitDeltaFn split_long, MergeDeltaFn merge_long) noexcept {
    return {{split_any<V, Bits, uint8_t>, split_any<V, Bits, uint16_t>,
             split_any<V, Bits, uint32_t>, split_long},
            {merge_any<V, Bits, uint8_t>, merge_any<V, Bits, uint16_t>,
             merge_any<V, Bits, uint32_t>, merge_long},
            decay_words<V>};
}

}  // namespace
}  // namespace ogds
