// Words of 16 and 32 bits as what codec 3 writes (FORMAT 7.7): a byte y that is coded, and a rest,
// whose fields are written as they are.
//
// Rests of up to 8 bits are in memory as their fields are: bitmaps from the top bit down. Longer
// ones are integers of 4 bytes.
//
// No standard header with inline functions: this file is compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "splits.h"

namespace ogds {

inline constexpr uint32_t kAnsMantissaBits = 4;  // upper bits of the mantissa that are in y
inline constexpr uint8_t kAnsWindow = 14;  // symbols below are distances from the prediction

// The sign, and below it the other bits of the mantissa.
static constexpr uint32_t ans_rest_bits(Split split) noexcept {
    return rest_bits(split) - kAnsMantissaBits;
}

// Bytes of the fields of m rests of n_bits, less than 24, as which bytes and bitmaps are enough.
static constexpr size_t ans_fields_bytes(uint32_t n_bits, uint32_t m) noexcept {
    return size_t{n_bits / 8} * m + size_t{n_bits % 8} * ((m + 7) / 8);
}

// Splits m words, given their predicted exponents, and leaves in any_rest their rests, ORed;
// returns the number of escapes, whose exponents go to `escapes` (room for m).
using SplitAnsFn = uint32_t (*)(const uint8_t* words, uint32_t m, const uint8_t* predicted,
                                uint8_t* y, uint8_t* rests, uint8_t* escapes,
                                uint32_t& any_rest) noexcept;

// Inverse. False if the bytes y do not hold exactly n_escapes escapes.
using MergeAnsFn = bool (*)(const uint8_t* y, const uint8_t* rests, uint32_t m,
                            const uint8_t* predicted, const uint8_t* escapes, uint32_t n_escapes,
                            uint8_t* words) noexcept;

// Indexed by Split; nullptr where words are not cut up.
struct AnsWordKernels {
    SplitAnsFn split[kSplits];
    MergeAnsFn merge[kSplits];
};

extern const AnsWordKernels kAnsWordsScalar;
extern const AnsWordKernels kAnsWordsAvx2;
extern const AnsWordKernels kAnsWordsSse42;
extern const AnsWordKernels kAnsWordsNeon;

uint32_t split_ans_fp32(const uint8_t* words, uint32_t m, const uint8_t* predicted, uint8_t* y,
                        uint8_t* rests, uint8_t* escapes, uint32_t& any_rest) noexcept;
bool merge_ans_fp32(const uint8_t* y, const uint8_t* rests, uint32_t m, const uint8_t* predicted,
                    const uint8_t* escapes, uint32_t n_escapes, uint8_t* words) noexcept;

// Writes the fields (FORMAT 7.2) of m rests without their low z bits; n_bits are left.
void write_fields(const uint8_t* rests, uint32_t m, Split split, uint32_t n_bits, uint32_t z,
                  uint8_t* fields) noexcept;

// Inverse: returns the rests, which are the fields themselves or in `scratch`.
const uint8_t* read_fields(const uint8_t* fields, uint32_t m, Split split, uint32_t n_bits,
                           uint32_t z, uint8_t* scratch) noexcept;

}  // namespace ogds
