// Words of 16 and 32 bits as what codec 3 writes (FORMAT 7.7): a byte y that is coded, and a rest,
// whose fields are written as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "splits.h"

namespace ogds {

inline constexpr uint32_t kAnsMantissaBits = 4;  // upper bits of the mantissa that are in y

// The splits whose words are cut up.
constexpr bool is_ans_split(Split split) noexcept {
    return split == Split::kBf16 || split == Split::kFp16 || split == Split::kFp32;
}

// The sign, and below it the other bits of the mantissa.
constexpr uint32_t ans_rest_bits(Split split) noexcept {
    return rest_bits(split) - kAnsMantissaBits;
}

// Bytes of a rest in memory.
constexpr size_t ans_rest_bytes(Split split) noexcept { return ans_rest_bits(split) > 8 ? 4 : 1; }

// Bytes of the fields of m rests of n_bits, less than 24, as which bytes and bitmaps are enough.
constexpr size_t ans_fields_bytes(uint32_t n_bits, uint32_t m) noexcept {
    return size_t{n_bits / 8} * m + size_t{n_bits % 8} * ((m + 7) / 8);
}

// Splits m words, given their predicted exponents; returns the number of escapes, whose exponents
// go to `escapes` (room for m).
uint32_t split_ans(const uint8_t* words, uint32_t m, Split split, const uint8_t* predicted,
                   uint8_t* y, uint8_t* rests, uint8_t* escapes) noexcept;

// Inverse. False if the bytes do not hold exactly n_escapes escapes.
bool merge_ans(const uint8_t* y, const uint8_t* rests, uint32_t m, Split split,
               const uint8_t* predicted, const uint8_t* escapes, uint32_t n_escapes,
               uint8_t* words) noexcept;

// All rests, ORed.
uint32_t all_rests(const uint8_t* rests, uint32_t m, Split split) noexcept;

// Writes the fields (FORMAT 7.2) of m rests without their low z bits; n_bits are left.
void write_fields(const uint8_t* rests, uint32_t m, Split split, uint32_t n_bits, uint32_t z,
                  uint8_t* fields) noexcept;

// Inverse.
void read_fields(const uint8_t* fields, uint32_t m, Split split, uint32_t n_bits, uint32_t z,
                 uint8_t* rests) noexcept;

}  // namespace ogds
