// Words of 16 and 32 bits as what codec 3 writes (FORMAT 7.7): a byte y that is coded, and a rest,
// whose fields are written as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "splits.h"

namespace ogds {

inline constexpr uint32_t kAnsMantissaBits = 4;  // upper bits of the mantissa that are in y

// The splits whose words are cut up; y of a dtype of up to 8 bits is the word.
constexpr bool is_ans_split(Split split) noexcept {
    return split == Split::kBf16 || split == Split::kFp16 || split == Split::kFp32;
}

// The sign, and below it the other bits of the mantissa.
constexpr uint32_t ans_rest_bits(Split split) noexcept {
    return rest_bits(split) - kAnsMantissaBits;
}

// Splits m words, given their predicted exponents; returns the number of escapes, whose exponents
// go to `escapes` (room for m).
uint32_t split_ans(const uint8_t* words, uint32_t m, Split split, const uint8_t* predicted,
                   uint8_t* y, uint32_t* rests, uint8_t* escapes) noexcept;

// Inverse. False if the bytes do not hold exactly n_escapes escapes.
bool merge_ans(const uint8_t* y, const uint32_t* rests, uint32_t m, Split split,
               const uint8_t* predicted, const uint8_t* escapes, uint32_t n_escapes,
               uint8_t* words) noexcept;

// Writes the fields (FORMAT 7.2) of m rests without their low z bits; n_bits are left.
void write_fields(const uint32_t* rests, uint32_t m, uint32_t n_bits, uint32_t z,
                  uint8_t* fields) noexcept;

// Inverse.
void read_fields(const uint8_t* fields, uint32_t m, uint32_t n_bits, uint32_t z,
                 uint32_t* rests) noexcept;

}  // namespace ogds
