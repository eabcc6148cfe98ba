// Differences between a tile's words and those of a base (FORMAT 7.11) in registers, a part of 16
// words of each lane's 128 at a time: y of a word, what is above its low bytes, in 16 bits.
//
// Include only from files of one instruction set. Everything here is in an unnamed namespace.
#pragma once

#include "bit_planes.h"
#include "delta_words.h"
#include "ladder_formats.h"

namespace ogds {
namespace {

// Exponents of a part's words that have eight bits of it below the sign.
template <class V, class Word>
OGDS_IN_REGISTERS typename V::T top_exponents(const uint8_t* words, uint32_t q) noexcept {
    if constexpr (sizeof(Word) == 2) {
        const auto exponents = [](typename V::T some) __attribute__((always_inline)) {
            return V::template right16<8>(V::template left16<1>(some));
        };
        return V::narrow16(exponents(V::load(words + 32 * q, 2 * kLaneWords)),
                           exponents(V::load(words + 32 * q + 16, 2 * kLaneWords)));
    } else {
        typename V::T upper[2];
        for (uint32_t half = 0; half < 2; ++half) {
            const auto a = V::load(words + 64 * q + 32 * half, 4 * kLaneWords);
            const auto b = V::load(words + 64 * q + 32 * half + 16, 4 * kLaneWords);
            upper[half] = V::narrow31(V::template right32<23>(a), V::template right32<23>(b));
        }
        return V::even8(upper[0], upper[1]);
    }
}

// What both directions need to know, of words of 16 and 32 bits.
template <class V, class Word>
struct Units;

template <class V>
struct Units<V, uint16_t> {
    using T = typename V::T;
    static T add(T a, T b) noexcept { return V::add16(a, b); }
    static T sub(T a, T b) noexcept { return V::sub16(a, b); }
    static T negative(T v) noexcept { return V::negative16(v); }
    static T half(T v) noexcept { return V::template right16<1>(v); }
    // t of words.
    static T ordered(T words, T flip) noexcept {
        return V::xor_(words, V::and_(negative(words), flip));
    }
    static T splat(uint32_t word) noexcept {
        return V::zip_low8(V::splat(word & 0xFF), V::splat(word >> 8));
    }
};

template <class V>
struct Units<V, uint32_t> {
    using T = typename V::T;
    static T add(T a, T b) noexcept { return V::add32(a, b); }
    static T sub(T a, T b) noexcept { return V::sub32(a, b); }
    static T negative(T v) noexcept { return V::negative32(v); }
    static T half(T v) noexcept { return V::template right32<1>(v); }
    static T ordered(T words, T flip) noexcept {
        return V::by_sign32(words, V::xor_(words, flip), words);
    }
    static T splat(uint32_t word) noexcept {
        return V::zip_low16(Units<V, uint16_t>::splat(word & 0xFFFF),
                            Units<V, uint16_t>::splat(word >> 16));
    }
};

// Of words of 16 and 32 bits, which are full.
template <class V, class Word, uint32_t kLow>
class Differences {
public:
    using T = typename V::T;
    using U = Units<V, Word>;

    explicit Differences(const DeltaFormat& format) noexcept
        : flip_(U::splat(static_cast<uint32_t>(format.flip))), one_(U::splat(1)),
          any_(V::splat(0)) {}

    // What takes differences of a tile's words: a copy, since a store of words might be one of a
    // member that others can reach.
    Differences of(const uint8_t* words, const uint8_t* base) const noexcept {
        Differences of_tile = *this;
        of_tile.words_ = words;
        of_tile.base_ = base;
        return of_tile;
    }
    // What joins differences to a tile's words.
    Differences into(uint8_t* words, const uint8_t* base) const noexcept {
        Differences joining = *this;
        joining.to_ = words;
        joining.base_ = base;
        return joining;
    }

    // y of the part's words, 0xFFFF where it is more; their low bytes go to those of the tile.
    // Returns the lowest byte of each y.
    OGDS_IN_REGISTERS T split(uint32_t q, T (&y)[2], uint8_t* low) const noexcept {
        if constexpr (sizeof(Word) == 2) {
            for (uint32_t half = 0; half < 2; ++half) {
                y[half] = difference(32 * q + 16 * half);
            }
            if constexpr (kLow == 1) {
                V::store(low + 16 * q, kLaneWords, V::even8(y[0], y[1]));
                y[0] = V::template right16<8>(y[0]);
                y[1] = V::template right16<8>(y[1]);
            }
            return V::even8(y[0], y[1]);
        } else {
            T z[4];
            for (uint32_t i = 0; i < 4; ++i) {
                z[i] = difference(64 * q + 16 * i);
            }
            for (uint32_t half = 0; half < 2; ++half) {
                T& a = z[2 * half];
                T& b = z[2 * half + 1];
                if constexpr (kLow == 2) {
                    V::part16(a, b);
                    V::store(low + 32 * q + 16 * half, 2 * kLaneWords, a);
                    y[half] = b;
                } else if constexpr (kLow == 1) {
                    y[half] = V::narrow31(V::template right32<8>(a), V::template right32<8>(b));
                } else {
                    y[half] = V::narrow32(a, b);
                }
            }
            if constexpr (kLow == 2) {
                return V::even8(y[0], y[1]);
            } else {
                const T first = V::even16(z[0], z[1]);
                const T second = V::even16(z[2], z[3]);
                const T lowest = V::even8(first, second);
                if constexpr (kLow == 0) {
                    return lowest;
                }
                V::store(low + 16 * q, kLaneWords, lowest);
                return V::odd8(first, second);
            }
        }
    }

    // Writes the part's words, which may be the base's.
    OGDS_IN_REGISTERS void join(uint32_t q, const T (&y)[2], const uint8_t* low) noexcept {
        if constexpr (sizeof(Word) == 2 && kLow == 0) {
            put(32 * q, y[0]);
            put(32 * q + 16, y[1]);
        } else if constexpr (sizeof(Word) == 2) {
            const T bytes = V::load(low + 16 * q, kLaneWords);
            any_ = V::or_(any_, V::or_(y[0], y[1]));
            put(32 * q, V::zip_low8(bytes, V::even8(y[0], y[1])));
            put(32 * q + 16, V::zip_high8(bytes, V::even8(y[0], y[1])));
        } else {
            for (uint32_t half = 0; half < 2; ++half) {
                T lower = y[half];
                T upper = V::splat(0);
                if constexpr (kLow == 2) {
                    lower = V::load(low + 32 * q + 16 * half, 2 * kLaneWords);
                    upper = y[half];
                } else if constexpr (kLow == 1) {
                    const T bytes = V::load(low + 16 * q, kLaneWords);
                    const T wide = half == 0 ? V::zip_low8(bytes, upper)
                                             : V::zip_high8(bytes, upper);
                    lower = V::or_(V::template left16<8>(y[half]), wide);
                    upper = V::template right16<8>(y[half]);
                }
                put(64 * q + 32 * half, V::zip_low16(lower, upper));
                put(64 * q + 32 * half + 16, V::zip_high16(lower, upper));
            }
        }
    }

    // After the parts of a tile of which n words are there; of those in the plane `escapes` any bit
    // may be set.
    void finish(const Differences& joining, uint32_t, const uint64_t*) noexcept {
        any_ = joining.any_;
    }

    // Whether no difference was too large.
    bool fit() const noexcept {
        return !V::any(V::and_(any_, Units<V, uint16_t>::splat(0xFF00)));
    }

private:
    static constexpr size_t kGap = sizeof(Word) * kLaneWords;

    // t of words.
    OGDS_IN_REGISTERS T ordered(T words) const noexcept {
        return U::ordered(words, flip_);
    }

    OGDS_IN_REGISTERS T difference(size_t at) const noexcept {
        const T d = U::sub(ordered(V::load(words_ + at, kGap)), ordered(V::load(base_ + at, kGap)));
        return V::xor_(U::add(d, d), U::negative(d));
    }

    OGDS_IN_REGISTERS void put(size_t at, T z) const noexcept {
        const T d = V::xor_(U::half(z), U::sub(V::splat(0), V::and_(z, one_)));
        V::store(to_ + at, kGap, ordered(U::add(ordered(V::load(base_ + at, kGap)), d)));
    }

    const uint8_t* words_ = nullptr;
    const uint8_t* base_ = nullptr;
    uint8_t* to_ = nullptr;
    T flip_;
    T one_;
    T any_;
};

// Of words of 8 bits and fewer, which take less time one by one than it takes to bring them to the
// top of a register's units.
template <class V, uint32_t kLow>
class Differences<V, uint8_t, kLow> {
public:
    using T = typename V::T;
    using D = DeltaOf<uint8_t>;
    static constexpr uint32_t kTile = V::kBytes * 8;

    explicit Differences(const DeltaFormat& format) noexcept : format_(format) {}

    Differences& of(const uint8_t* words, const uint8_t* base) noexcept {
        for (uint32_t i = 0; i < kTile; ++i) {
            y_[i] = D::difference(words[i], base[i], format_.shift,
                                  static_cast<uint8_t>(format_.flip));
        }
        return *this;
    }
    Differences& into(uint8_t* words, const uint8_t* base) noexcept {
        to_ = words;
        base_ = base;
        return *this;
    }

    OGDS_IN_REGISTERS T split(uint32_t q, T (&y)[2], uint8_t*) const noexcept {
        const T bytes = V::load(y_ + 16 * q, kLaneWords);
        y[0] = V::zip_low8(bytes, V::splat(0));
        y[1] = V::zip_high8(bytes, V::splat(0));
        return bytes;
    }

    OGDS_IN_REGISTERS void join(uint32_t q, const T (&y)[2], const uint8_t*) noexcept {
        V::store(y_ + 16 * q, kLaneWords, V::narrow16(y[0], y[1]));
        const T upper = V::odd8(y[0], y[1]);
        V::store(upper_ + 16 * q, kLaneWords, upper);
    }

    void finish(const Differences&, uint32_t n, const uint64_t* escapes) noexcept {
        const auto flip = static_cast<uint8_t>(format_.flip);
        for (uint32_t i = 0; i < n; ++i) {
            const uint32_t counts = static_cast<uint32_t>(escapes[i / 64] >> (i % 64) & 1) - 1;
            any_ |= (static_cast<uint32_t>(upper_[i]) << 8 | y_[i]) & counts;
        }
        for (uint32_t i = 0; i < kTile; ++i) {
            words_[i] = D::word(y_[i], base_[i], format_.shift, flip);
        }
        __builtin_memcpy(to_, words_, kTile);
    }

    bool fit() const noexcept { return any_ >> format_.bits == 0; }

private:
    const DeltaFormat& format_;
    const uint8_t* base_ = nullptr;
    uint8_t* to_ = nullptr;
    uint32_t any_ = 0;
    alignas(64) uint8_t y_[kTile];
    alignas(64) uint8_t upper_[kTile];
    alignas(64) uint8_t words_[kTile];
};

}  // namespace
}  // namespace ogds
