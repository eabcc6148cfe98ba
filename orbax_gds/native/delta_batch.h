// What differences have below their symbols (FORMAT 7.11), a batch of words at a time: which words
// have a bit in which plane, and bits to and from planes.
//
// Include only from files of one instruction set. Everything here is in an unnamed namespace.
#pragma once

#include "bit_group.h"
#include "delta_differences.h"
#include "ladder_words.h"

namespace ogds {
namespace {

// So many words are coded together that the planes of all lie in a first-level cache.
constexpr uint32_t kBatchWords = 2048;
constexpr uint32_t kBatchGroups = kBatchWords / 64;

// What the bits below the symbols of a batch of words are.
template <class V>
struct BelowBatch {
    static constexpr uint32_t kTile = V::kBytes * 8;

    alignas(64) uint8_t scales[kBatchWords];              // 2^k by the parts of each tile
    alignas(64) uint64_t has[kMaxLowPlanes][kBatchGroups];   // which words have a bit
    alignas(64) uint64_t bits[kMaxLowPlanes][kBatchGroups];  // and which is set
    alignas(64) uint64_t escapes[kBatchGroups];              // which words are escapes

    static uint8_t* tile_of(uint64_t (&plane)[kBatchGroups], uint32_t tile) noexcept {
        return reinterpret_cast<uint8_t*>(plane) + size_t{tile} * V::kBytes;
    }
};

// How many bits the words of a tile have below their symbols, given those of the base.
template <class V, class Word>
class BitsBelow {
public:
    using T = typename V::T;
    static constexpr uint32_t kTile = V::kBytes * 8;

    BitsBelow(const DeltaFormat& format, const DeltaTables& tables) noexcept
        : format_(format), tables_(tables), shift_(V::splat(tables.ladder.emax & 0xFFu)),
          most_(V::splat(kMaxLowPlanes)),
          in_registers_(sizeof(Word) > 1 && tables.exponents &&
                        format.exponent_shift + 9u == 8 * sizeof(Word)) {}

    // Calls fn(q, k) for every part of the tile, of whose words n are there: the others have none.
    template <class Fn>
    OGDS_IN_REGISTERS void each(const uint8_t* base, uint32_t n, Fn fn) noexcept {
        if constexpr (sizeof(Word) > 1) {
            if (__builtin_expect(in_registers_ && n == kTile, 1)) {
                for (uint32_t q = 0; q < 8; ++q) {  // of exponents of eight bits below the sign
                    const auto e = top_exponents<V, Word>(base, q);
                    fn(q, V::min8(V::above8(shift_, e), most_));
                }
                return;
            }
        }
        find(base, n);
        for (uint32_t q = 0; q < 8; ++q) {
            fn(q, V::load(k_ + 16 * q, kLaneWords));
        }
    }

private:
    void find(const uint8_t* base, uint32_t n) noexcept {
        if (!tables_.exponents) {
            __builtin_memset(k_, static_cast<int>(tables_.ladder.emax), n);
        } else {
            for (uint32_t i = 0; i < n; ++i) {
                k_[i] = static_cast<uint8_t>(
                    bits_below(exponent_of(DeltaOf<Word>::load(base, i), format_), tables_));
            }
        }
        __builtin_memset(k_ + n, 0, kTile - n);
    }

    const DeltaFormat& format_;
    const DeltaTables& tables_;
    const T shift_;
    const T most_;
    const bool in_registers_;
    alignas(64) uint8_t k_[kTile];
};

// Places of escapes among the words of a batch.
struct EscapePlaces {
    static constexpr uint32_t kAtOnce = 2;
    uint32_t n = 0;
    uint16_t at[kBatchWords + kAtOnce];

    // Adds those of a group. How many they are is a matter of chance: no branch for a few.
    void add(uint64_t bits, uint32_t first) noexcept {
        uint16_t* to = at + n;
        n += static_cast<uint32_t>(__builtin_popcountll(bits));
        do {
            for (uint32_t i = 0; i < kAtOnce; ++i) {
                const int place = bits == 0 ? 64 : __builtin_ctzll(bits);
                *to++ = static_cast<uint16_t>(first + static_cast<uint32_t>(place));
                bits &= bits - 1;
            }
        } while (bits != 0);
    }
};

// Fewer escapes than one of so many words are looked for with a branch for each group.
constexpr uint32_t kWordsAnEscape = 256;

// Those of the first n words of a batch, with a branch for groups without any or none.
inline void find_places(const uint64_t* escapes, uint32_t n, bool few,
                        EscapePlaces& places) noexcept {
    places.n = 0;
    for (uint32_t g = 0; g < n / 64; ++g) {
        if (!few || escapes[g] != 0) {
            places.add(escapes[g], 64 * g);
        }
    }
    if (n % 64 != 0) {
        places.add(escapes[n / 64] & low_bits(n % 64), n / 64 * 64);
    }
}

// The largest of the bytes.
template <class V>
inline uint32_t most_of(typename V::T v) noexcept {
    uint8_t bytes[V::kBytes];
    V::store_whole(bytes, v);
    uint32_t most = 0;
    for (const uint8_t byte : bytes) {
        most = byte > most ? byte : most;
    }
    return most;
}

// Where a plane ends whose first 8 bytes were 0.
struct PlaneEnd {
    uint8_t* to;
    uint32_t at = 0;

    // Appends the bits of those words of a group that are in `has`.
    template <class Bits>
    OGDS_IN_REGISTERS void append(uint64_t bits, uint64_t has) noexcept {
        append_bits(Bits::extract({bits, 0, 0, 0}, has).b0, uint64_t{1} << at % 64,
                    to + (at / 8 & ~7u));
        at += static_cast<uint32_t>(__builtin_popcountll(has));
    }
};

class LowWriter {
public:
    explicit LowWriter(LowBits& below) noexcept : below_(below) {
        for (uint32_t plane = 0; plane < kMaxLowPlanes; ++plane) {
            ends_[plane].to = below.of[plane];
            store_u64le(below.of[plane], 0);
        }
    }

    // Of the first planes of a batch. Two at once: each waits for its own bits before.
    template <class Bits, class V>
    void append(uint32_t n_planes, const BelowBatch<V>& batch, uint32_t n_groups) noexcept {
        uint32_t plane = 0;
        for (; plane + 2 <= n_planes; plane += 2) {
            append_some<Bits, 2>(ends_ + plane, batch.bits + plane, batch.has + plane, n_groups);
        }
        if (plane < n_planes) {
            append_some<Bits, 1>(ends_ + plane, batch.bits + plane, batch.has + plane, n_groups);
        }
    }

    void finish(uint32_t n_planes) noexcept {
        below_.n = n_planes;
        for (uint32_t plane = 0; plane < kMaxLowPlanes; ++plane) {
            below_.n_bits[plane] = ends_[plane].at;
        }
    }

private:
    // Has all registers for itself.
    template <class Bits, uint32_t kN>
    __attribute__((noinline)) static void append_some(PlaneEnd* ends,
                                                      const uint64_t (*bits)[kBatchGroups],
                                                      const uint64_t (*has)[kBatchGroups],
                                                      uint32_t n_groups) noexcept {
        PlaneEnd first = ends[0];
        PlaneEnd last = ends[kN - 1];
        for (uint32_t g = 0; g < n_groups; ++g) {
            first.append<Bits>(bits[0][g], has[0][g]);
            if constexpr (kN > 1) {
                last.append<Bits>(bits[1][g], has[1][g]);
            }
        }
        ends[kN - 1] = last;
        ends[0] = first;
    }

    LowBits& below_;
    PlaneEnd ends_[kMaxLowPlanes];
};

// Takes bits from each plane, at any bit position.
class LowReader {
public:
    LowReader(const LowBitsView& below, uint32_t n_words) noexcept
        : below_(below), n_words_(n_words) {}

    // Takes the bits of `plane` of the words in `has` to `bits`, group by group. Loads at most a
    // batch's bits beyond the plane: false if it has not as many.
    template <class Bits>
    bool take(uint32_t plane, const uint64_t* has, uint64_t* bits, uint32_t n_groups) noexcept {
        const bool few = 2 * below_.n_bits[plane] < n_words_;
        const uint64_t end = few ? take<Bits, true>(plane, has, bits, n_groups)
                                 : take<Bits, false>(plane, has, bits, n_groups);
        taken_[plane] = static_cast<uint32_t>(end);
        return end <= below_.n_bits[plane];
    }

    bool is_finished() const noexcept {
        bool finished = true;
        for (uint32_t plane = 0; plane < below_.n; ++plane) {
            finished &= taken_[plane] == below_.n_bits[plane];
        }
        return finished;
    }

private:
    // Of a plane that few words have bits in, where eight bytes nearly always reach to the end of a
    // group's; else it is a matter of chance, and taken without a branch.
    template <class Bits, bool kFew>
    uint64_t take(uint32_t plane, const uint64_t* has, uint64_t* bits,
                  uint32_t n_groups) const noexcept {
        const uint8_t* const from = below_.of[plane];
        uint64_t at = taken_[plane];
        for (uint32_t g = 0; g < n_groups; ++g) {
            const uint64_t words = has[g];
            const auto n = static_cast<uint64_t>(__builtin_popcountll(words));
            uint64_t some = 0;
            if constexpr (kFew) {
                some = load_u64le(from + at / 8) >> (at % 8);
                if (__builtin_expect(n > 57, 0)) {
                    some |= uint64_t{from[at / 8 + 8]} << 1 << (63 - at % 8);
                }
            } else {
                const uint8_t* bytes = from + 8 * (at / 64);
                some = load_u64le(bytes) >> (at % 64) | load_u64le(bytes + 8) << 1 << (~at % 64);
            }
            at += n;
            bits[g] = Bits::deposit({some, 0, 0, 0}, words).b0;
        }
        return at;
    }

    const LowBitsView& below_;
    const uint32_t n_words_;
    uint32_t taken_[kMaxLowPlanes] = {};
};

}  // namespace
}  // namespace ogds
