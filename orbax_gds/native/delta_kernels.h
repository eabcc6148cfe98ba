// The inner loops of codec 6 (FORMAT 7.11), one set per instruction set: words less those of a base
// as symbols, which become ranks of the ladder's levels, and planes of the bits below them.
//
// No standard header with inline functions: this file is compiled for several instruction sets.
#pragma once

#include "ladder_kernels.h"

namespace ogds {

inline constexpr uint32_t kMaxLowPlanes = 7;  // the most bits below a symbol
inline constexpr uint32_t kMaxLowBytes = 6;
inline constexpr uint32_t kMaxDecay = 32767;

// What differences need to know of a dtype. Words are shifted to the top of their container.
struct DeltaFormat {
    uint8_t bits;
    uint8_t shift;            // of a word to the top
    uint64_t flip;            // bits that a sign flips, at the top; 0: words are in order
    uint8_t exponent_shift;   // of a word as it is
    uint8_t exponent_mask;
};

// What the header says, beside levels and symbols; ladder.emax is its shift.
struct DeltaTables {
    LadderTables ladder;
    bool exponents = false;  // less the base's
    uint8_t low_bytes = 0;   // of every difference, that are written as they are
    uint16_t decay = 0;      // of the base's words, which the loops are given without it
    bool has_lengths = false;
    bool has_scales = false;  // each sub-block has its own shift, exponents and low bytes
};

// What differences have below their symbols.
struct LowBits {
    // More than the words need: writers store 16 bytes at any multiple of 8.
    static constexpr size_t kBytes = kSubBlockWords / 8 + 64;
    uint8_t low[kSubBlockWords * kMaxLowBytes + 64];  // the low bytes of all words
    uint8_t of[kMaxLowPlanes][kBytes];                // the planes
    uint32_t n_bits[kMaxLowPlanes];
    uint32_t n;  // planes up to the last that has a bit
};

// The same in a payload. Readers load up to kBeyond bytes behind the end of any plane.
struct LowBitsView {
    static constexpr size_t kBeyond = 320;
    const uint8_t* low;
    const uint8_t* of[kMaxLowPlanes];
    uint32_t n_bits[kMaxLowPlanes];
    uint32_t n;
};

// Splits m words, given those of the base, into ranks and bits below; returns the number of
// escapes, whose y go to `escapes` (room for m of a container's bytes). The words may change
// meanwhile: what comes of it is what some words would give.
using SplitDeltaFn = uint32_t (*)(const uint8_t* words, const uint8_t* base, uint32_t m,
                                  const DeltaFormat& format, const DeltaTables& tables,
                                  RankPlanes& ranks, uint8_t* escapes, LowBits& below) noexcept;

// Inverse; `words` may be `base`. With past_caches they are at a multiple of 16 bytes and are
// streamed there. False if the ranks do not hold exactly n_escapes escapes, a word
// has more bits below its symbol than there are planes, the words do not take exactly the bits of
// every plane, or a difference is too large.
using MergeDeltaFn = bool (*)(const RankPlanes& ranks, const uint8_t* base, uint32_t m,
                              const DeltaFormat& format, const DeltaTables& tables,
                              const uint8_t* escapes, uint32_t n_escapes,
                              const LowBitsView& below, uint8_t* words,
                              bool past_caches) noexcept;

// n words of the split fp32 less their decay; `decayed` may be `base`.
using DecayFn = void (*)(const uint8_t* base, uint32_t n, uint32_t decay,
                         uint8_t* decayed) noexcept;

// Splits and merges are indexed by the logarithm of a container's bytes.
struct DeltaKernels {
    SplitDeltaFn split[4];
    MergeDeltaFn merge[4];
    DecayFn decay;
};

// Of words of 8 bytes, on every machine.
uint32_t split_delta_long(const uint8_t* words, const uint8_t* base, uint32_t m,
                          const DeltaFormat& format, const DeltaTables& tables, RankPlanes& ranks,
                          uint8_t* escapes, LowBits& below) noexcept;
bool merge_delta_long(const RankPlanes& ranks, const uint8_t* base, uint32_t m,
                      const DeltaFormat& format, const DeltaTables& tables,
                      const uint8_t* escapes, uint32_t n_escapes, const LowBitsView& below,
                      uint8_t* words, bool past_caches) noexcept;

extern const DeltaKernels kDeltaScalar;
extern const DeltaKernels kDeltaAvx2;
extern const DeltaKernels kDeltaAvx2Softbits;
extern const DeltaKernels kDeltaSse42;
extern const DeltaKernels kDeltaNeon;

}  // namespace ogds
