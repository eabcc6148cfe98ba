// Differences between words and those of a base (FORMAT 7.11), for one word and for many.
//
// Include only from files of one instruction set: everything here is in an unnamed namespace.
#pragma once

#include "bytes.h"
#include "delta_kernels.h"

namespace ogds {
namespace {

template <class Word>
struct DeltaOf {
    static constexpr uint32_t kBits = 8 * sizeof(Word);

    static Word load(const uint8_t* words, size_t i) noexcept {
        Word word;
        __builtin_memcpy(&word, words + i * sizeof word, sizeof word);
        return word;
    }

    static void store(uint8_t* words, size_t i, Word word) noexcept {
        __builtin_memcpy(words + i * sizeof word, &word, sizeof word);
    }

    // All ones where the highest bit is set, else 0.
    static Word sign(Word word) noexcept { return static_cast<Word>(0 - (word >> (kBits - 1))); }

    // t at the top of the container; its own inverse there.
    static Word ordered(Word top, Word flip) noexcept {
        return static_cast<Word>(top ^ (sign(top) & flip));
    }

    static Word at_top(Word word, uint32_t shift) noexcept {
        return static_cast<Word>(word << shift);
    }

    // z of a word and its base's.
    static Word difference(Word word, Word base, uint32_t shift, Word flip) noexcept {
        const auto d = static_cast<Word>(ordered(at_top(word, shift), flip) -
                                         ordered(at_top(base, shift), flip));
        const auto twice = static_cast<Word>((d ^ sign(d)) << 1);
        return static_cast<Word>((twice >> shift) | (sign(d) & 1));
    }

    // y of z, and z of y with low bytes of 0.
    static Word above(Word z, uint32_t low_bytes) noexcept {
        return static_cast<Word>(z >> 8 * low_bytes);
    }
    static Word with_low(Word y, uint32_t low_bytes) noexcept {
        return static_cast<Word>(y << 8 * low_bytes);
    }

    // The largest y of words of so many bits.
    static Word largest(uint32_t bits, uint32_t low_bytes) noexcept {
        return static_cast<Word>(~uint64_t{0} >> (64 - bits + 8 * low_bytes));
    }

    // Inverse of difference.
    static Word word(Word z, Word base, uint32_t shift, Word flip) noexcept {
        const auto d = static_cast<Word>((z >> 1) ^ (0 - (z & 1)));
        const auto top = static_cast<Word>(ordered(at_top(base, shift), flip) + at_top(d, shift));
        return static_cast<Word>(ordered(top, flip) >> shift);
    }
};

// The first kBytes, up to four, of what lies there; a copy of three into a word would be slow.
template <class Word, uint32_t kBytes>
inline Word load_bytes(const uint8_t* at) noexcept {
    static_assert(kBytes <= 4);
    if constexpr (kBytes == 0) {
        return 0;
    } else if constexpr (kBytes == 3) {
        return static_cast<Word>(load_u16le(at) | static_cast<uint32_t>(at[2]) << 16);
    } else {
        Word word = 0;
        __builtin_memcpy(&word, at, kBytes);
        return word;
    }
}

template <uint32_t kBytes>
inline void store_bytes(uint8_t* at, uint32_t word) noexcept {
    if constexpr (kBytes == 3) {
        store_u16le(at, static_cast<uint16_t>(word));
        at[2] = static_cast<uint8_t>(word >> 16);
    } else {
        __builtin_memcpy(at, &word, kBytes);
    }
}

// How many bits of y are below the symbol, given the base's exponent.
inline uint32_t bits_below(uint32_t exponent, const DeltaTables& tables) noexcept {
    const uint32_t shift = tables.ladder.emax;
    const uint32_t less = tables.exponents ? exponent : 0;
    const uint32_t k = shift > less ? shift - less : 0;
    return k < kMaxLowPlanes ? k : kMaxLowPlanes;
}

// A word of the split fp32 less its decay.
inline uint32_t decayed(uint32_t word, uint32_t decay) noexcept {
    const uint32_t mantissa = 1u << 14 | (word >> 9 & 0x3FFF);
    return word - ((mantissa * decay + (1u << 14)) >> 15);
}

// The exponent of a word as it is.
template <class Word>
inline uint8_t exponent_of(Word word, const DeltaFormat& format) noexcept {
    return static_cast<uint8_t>(static_cast<uint8_t>(word >> format.exponent_shift) &
                                format.exponent_mask);
}

}  // namespace
}  // namespace ogds
