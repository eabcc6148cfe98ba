// Sets of bytes, and the search for them in many.
//
// Everything here is `static inline`: this file is compiled for several instruction sets, and the
// linker must never merge the copies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ogds {

// A set of bytes: whether y is in it is bit y / 16 % 8 of byte y % 16 + y / 128 * 16, so that
// tables of 16 bytes can tell.
struct ByteSet {
    uint8_t of[2 * 16] = {};
};

static inline void add_byte(ByteSet& set, uint32_t y) noexcept {
    uint8_t& place = set.of[y % 16 + y / 128 * 16];
    place = static_cast<uint8_t>(place | 1u << (y / 16 % 8));
}

static inline bool has_byte(const ByteSet& set, uint32_t y) noexcept {
    return (set.of[y % 16 + y / 128 * 16] >> (y / 16 % 8) & 1) != 0;
}

// Whether any of n bytes is in the set.
using HasAnyFn = bool (*)(const uint8_t* y, uint32_t n, const ByteSet& set) noexcept;

}  // namespace ogds
