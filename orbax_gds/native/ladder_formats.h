// What the loops of ladder_words.h know of each split: how a part of words becomes exponents and
// fields, and back.
//
// A part is a register of words, 16 of each lane's 128 (bit_planes.h). `planes` are those of the
// group's fields (FORMAT 7.2). Planes of bytes and of 16 bits are stored and loaded here; what is
// written as bitmaps goes through Part::bits: kLowBits bits in the low bits and, with kSignBitmap,
// the sign in bit 7. What put() finds in the other bits is of no meaning. `signs` has a one in bit 7
// where the first field's sign counts, for formats that have such a field of a byte.
//
// Include only from files of one instruction set, with its V (vector_*.h).
#pragma once

#include "bytes.h"
#include "ladder_kernels.h"

namespace ogds {
namespace {

constexpr size_t kLaneWords = 128;

template <class V>
struct Part {
    typename V::T exponent;  // of a format with kSymbols: the symbol of FORMAT 7.4
    typename V::T bits;
};

// The two bytes of words of 16 bits.
template <class V>
struct Halves {
    typename V::T low, high;
};

// bf16 and the upper half of fp32: stores sign and mantissa, returns the exponents.
template <class V>
inline typename V::T take_top(const Halves<V>& top, uint8_t* plane) noexcept {
    V::store(plane, kLaneWords, V::select(V::splat(0x80), top.high, top.low));
    return V::sub8(V::add8(top.high, top.high), V::negative8(top.low));
}

template <class V>
inline Halves<V> put_top(typename V::T exponent, typename V::T signs,
                         const uint8_t* plane) noexcept {
    const auto rest = V::load(plane, kLaneWords);
    const auto upper = V::and_(V::template right16<1>(exponent), V::splat(0x7F));
    return {V::select(V::splat(0x80), V::template left16<7>(exponent), rest),
            V::or_(V::and_(rest, signs), upper)};
}

template <class V>
inline Halves<V> load_halves(const uint8_t* words) noexcept {
    const auto a = V::load(words, 2 * kLaneWords);
    const auto b = V::load(words + 16, 2 * kLaneWords);
    return {V::even8(a, b), V::odd8(a, b)};
}

template <class V>
inline void store_halves(const Halves<V>& halves, uint8_t* words) noexcept {
    V::store(words, 2 * kLaneWords, V::zip_low8(halves.low, halves.high));
    V::store(words + 16, 2 * kLaneWords, V::zip_high8(halves.low, halves.high));
}

struct Bf16 {
    static constexpr Split kSplit = Split::kBf16;
    static constexpr bool kPredicted = true;
    static constexpr uint32_t kWordBytes = 2;
    static constexpr uint32_t kLowBits = 0;
    static constexpr bool kSignBitmap = false;
    static constexpr bool kSymbols = false;

    template <class V>
    static Part<V> take(const uint8_t* words, uint32_t q, uint32_t,
                        uint8_t* const* planes) noexcept {
        const Halves<V> top = load_halves<V>(words + 32 * q);
        return {take_top<V>(top, planes[0] + 16 * q), V::splat(0)};
    }

    template <class V>
    static void put(const Part<V>& part, typename V::T signs, uint32_t q, uint32_t,
                    const uint8_t* const* planes, uint8_t* words) noexcept {
        store_halves<V>(put_top<V>(part.exponent, signs, planes[0] + 16 * q), words + 32 * q);
    }
};

struct Fp32 {
    static constexpr Split kSplit = Split::kFp32;
    static constexpr bool kPredicted = true;
    static constexpr uint32_t kWordBytes = 4;
    static constexpr uint32_t kLowBits = 0;
    static constexpr bool kSignBitmap = false;
    static constexpr bool kSymbols = false;

    template <class V>
    static Part<V> take(const uint8_t* words, uint32_t q, uint32_t,
                        uint8_t* const* planes) noexcept {
        uint8_t* low = planes[1] + 32 * q;
        words += 64 * q;
        typename V::T top[2];
        for (uint32_t half = 0; half < 2; ++half) {
            const auto a = V::load(words + 32 * half, 4 * kLaneWords);
            const auto b = V::load(words + 32 * half + 16, 4 * kLaneWords);
            V::store(low + 16 * half, 2 * kLaneWords, V::even16(a, b));
            top[half] = V::odd16(a, b);
        }
        const Halves<V> halves = {V::even8(top[0], top[1]), V::odd8(top[0], top[1])};
        return {take_top<V>(halves, planes[0] + 16 * q), V::splat(0)};
    }

    template <class V>
    static void put(const Part<V>& part, typename V::T signs, uint32_t q, uint32_t,
                    const uint8_t* const* planes, uint8_t* words) noexcept {
        const uint8_t* low = planes[1] + 32 * q;
        words += 64 * q;
        const Halves<V> halves = put_top<V>(part.exponent, signs, planes[0] + 16 * q);
        const typename V::T top[2] = {V::zip_low8(halves.low, halves.high),
                                      V::zip_high8(halves.low, halves.high)};
        for (uint32_t half = 0; half < 2; ++half) {
            const auto bottom = V::load(low + 16 * half, 2 * kLaneWords);
            V::store(words + 32 * half, 4 * kLaneWords, V::zip_low16(bottom, top[half]));
            V::store(words + 32 * half + 16, 4 * kLaneWords, V::zip_high16(bottom, top[half]));
        }
    }
};

// Sign and 7 bits of mantissa in a byte, 3 bits of mantissa in bitmaps.
struct Fp16 {
    static constexpr Split kSplit = Split::kFp16;
    static constexpr bool kPredicted = true;
    static constexpr uint32_t kWordBytes = 2;
    static constexpr uint32_t kLowBits = 3;
    static constexpr bool kSignBitmap = false;
    static constexpr bool kSymbols = false;

    template <class V>
    static Part<V> take(const uint8_t* words, uint32_t q, uint32_t,
                        uint8_t* const* planes) noexcept {
        const Halves<V> word = load_halves<V>(words + 32 * q);
        const auto upper = V::template left16<5>(word.high);  // 2 bits of mantissa in 0x60
        const auto lower = V::and_(V::template right16<3>(word.low), V::splat(0x1F));
        const auto mantissa = V::select(V::splat(0x60), upper, lower);
        V::store(planes[0] + 16 * q, kLaneWords, V::select(V::splat(0x80), word.high, mantissa));
        return {V::and_(V::template right16<2>(word.high), V::splat(0x1F)),
                V::and_(word.low, V::splat(0x07))};
    }

    template <class V>
    static void put(const Part<V>& part, typename V::T signs, uint32_t q, uint32_t,
                    const uint8_t* const* planes, uint8_t* words) noexcept {
        const auto rest = V::load(planes[0] + 16 * q, kLaneWords);
        const auto exponent = V::template left16<2>(part.exponent);
        const auto upper = V::select(V::splat(0x03), V::template right16<5>(rest), exponent);
        store_halves<V>({V::select(V::splat(0x07), part.bits, V::template left16<3>(rest)),
                         V::or_(V::and_(rest, signs), upper)},
                        words + 32 * q);
    }
};

// Words of 8 bits and fewer: all of the rest is in bitmaps.
template <Split kThis>
struct Small {
    static constexpr Split kSplit = kThis;
    static constexpr bool kPredicted = false;
    static constexpr SplitBits kBits = split_bits(kThis);
    static constexpr uint32_t kWordBytes = 1;
    static constexpr uint32_t kLowBits = kBits.mantissa;
    static constexpr bool kSignBitmap = kBits.sign != 0;
    static constexpr bool kSymbols = false;
    static constexpr uint32_t kLowMask = (1u << kLowBits) - 1;
    static constexpr uint32_t kRestMask = kSignBitmap && kBits.exponent + kBits.mantissa == 7
                                              ? 0x80 | kLowMask
                                              : kLowMask;
    // How far the sign is from bit 7.
    static constexpr int kSignShift =
        kSignBitmap ? 7 - static_cast<int>(kBits.exponent + kBits.mantissa) : 0;

    template <class V>
    static Part<V> take(const uint8_t* words, uint32_t q, uint32_t, uint8_t* const*) noexcept {
        const auto word = V::load(words + 16 * q, kLaneWords);
        const auto exponent = V::and_(V::template right16<kLowBits>(word),
                                      V::splat(max_exponent(kThis)));
        auto bits = word;
        if constexpr (kSignShift > 0) {
            bits = V::select(V::splat(0x80), V::template left16<kSignShift>(word), word);
        }
        return {exponent, V::and_(bits, V::splat(kSignBitmap ? 0x80 | kLowMask : kLowMask))};
    }

    template <class V>
    static void put(const Part<V>& part, typename V::T, uint32_t q, uint32_t,
                    const uint8_t* const*, uint8_t* words) noexcept {
        const auto exponent = V::template left16<kLowBits>(part.exponent);
        auto word = V::select(V::splat(kRestMask), part.bits, exponent);
        if constexpr (kSignShift > 0) {
            const auto sign = V::template right16<kSignShift>(part.bits);
            word = V::select(V::splat(0x80u >> kSignShift), sign, word);
        }
        V::store(words + 16 * q, kLaneWords, word);
    }
};

// Eight bytes a word leave time to cut them up one by one.
struct Fp64 {
    static constexpr Split kSplit = Split::kFp64;
    static constexpr bool kPredicted = false;
    static constexpr uint32_t kWordBytes = 8;
    static constexpr uint32_t kLowBits = 5;
    static constexpr bool kSignBitmap = false;
    static constexpr bool kSymbols = true;

    template <class V>
    static Part<V> take(const uint8_t* words, uint32_t q, uint32_t emax,
                        uint8_t* const* planes) noexcept {
        uint8_t symbols[V::kBytes];
        uint8_t bits[V::kBytes];
        for (uint32_t i = 0; i < V::kBytes; ++i) {
            const size_t at = kLaneWords * (i / 16) + 16 * q + i % 16;
            const uint64_t word = load_u64le(words + 8 * at);
            const uint64_t difference = (emax - (word >> 52)) & 0x7FF;
            symbols[i] = static_cast<uint8_t>(difference < kEscapeSymbol ? difference
                                                                         : kEscapeSymbol);
            planes[0][at] = static_cast<uint8_t>((word >> 63) << 7 | (word >> 45 & 0x7F));
            store_u16le(planes[1] + 2 * at, static_cast<uint16_t>(word >> 29));
            store_u16le(planes[2] + 2 * at, static_cast<uint16_t>(word >> 13));
            planes[3][at] = static_cast<uint8_t>(word >> 5);
            bits[i] = static_cast<uint8_t>(word & 0x1F);
        }
        return {V::load(symbols, 16), V::load(bits, 16)};
    }

    template <class V>
    static void put(const Part<V>& part, typename V::T, uint32_t q, uint32_t emax,
                    const uint8_t* const* planes, uint8_t* words) noexcept {
        uint8_t symbols[V::kBytes];
        uint8_t bits[V::kBytes];
        V::store(symbols, 16, part.exponent);
        V::store(bits, 16, part.bits);
        for (uint32_t i = 0; i < V::kBytes; ++i) {
            const size_t at = kLaneWords * (i / 16) + 16 * q + i % 16;
            const uint64_t rest = planes[0][at];
            const uint64_t exponent = (emax - symbols[i]) & 0x7FF;
            const uint64_t mantissa = (rest & 0x7F) << 45 |
                                      uint64_t{load_u16le(planes[1] + 2 * at)} << 29 |
                                      uint64_t{load_u16le(planes[2] + 2 * at)} << 13 |
                                      uint64_t{planes[3][at]} << 5 | (bits[i] & 0x1F);
            store_u64le(words + 8 * at, rest >> 7 << 63 | exponent << 52 | mantissa);
        }
    }
};

}  // namespace
}  // namespace ogds
