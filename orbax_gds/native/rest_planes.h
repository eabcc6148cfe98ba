// Passes of codec 2 over the planes of the rest (FORMAT 7.6), in the form that every machine does
// well: eight words a step.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ogds {

// ORs the bitmap into bit 7 of the m bytes of the first field. False if one of these bits was set,
// which is a word with a sign: then the bytes are undefined.
bool fill_sign_slot(const uint8_t* bitmap, uint32_t m, uint8_t* bytes) noexcept;

// Inverse: the bitmap of bit 7.
void read_sign_slot(const uint8_t* bytes, uint32_t m, uint8_t* bitmap) noexcept;

// Writes the upper 16 - z bits (0 < z < 16) of m integers of 2 bytes as a field of that many bits.
// `scratch` has room for m bytes.
void write_trimmed(const uint8_t* integers, uint32_t m, uint32_t z, uint8_t* scratch,
                   uint8_t* field) noexcept;

// Inverse, for 0 < z <= 16.
void read_trimmed(const uint8_t* field, uint32_t m, uint32_t z, uint8_t* scratch,
                  uint8_t* integers) noexcept;

}  // namespace ogds
