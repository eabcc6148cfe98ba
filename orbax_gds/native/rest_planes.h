// Passes of codec 2 over planes (FORMAT 7.6), in the form that every machine does well: eight words
// a step.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ogds {

// The twins of the kernels of these names (ladder_kernels.h), which leave to them what is less than
// a register.
bool fill_sign_slot(const uint8_t* bitmap, uint32_t m, uint8_t* bytes) noexcept;
void read_sign_slot(const uint8_t* bytes, uint32_t m, uint8_t* bitmap) noexcept;
void predict_row(const uint8_t* of_column, uint32_t n, uint8_t of_row, uint8_t mask,
                 uint8_t* predicted) noexcept;

// Writes the upper 16 - z bits (0 < z < 16) of m integers of 2 bytes as a field of that many bits.
// `scratch` has room for m bytes.
void write_trimmed(const uint8_t* integers, uint32_t m, uint32_t z, uint8_t* scratch,
                   uint8_t* field) noexcept;

// Inverse, for 0 < z <= 16.
void read_trimmed(const uint8_t* field, uint32_t m, uint32_t z, uint8_t* scratch,
                  uint8_t* integers) noexcept;

}  // namespace ogds
