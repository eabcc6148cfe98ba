// Sets of bytes, and the search for them in many.
//
// No standard header with inline functions: this file is compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ogds {

// A set of bytes: whether y is in it is bit y / 16 % 8 of byte y % 16 + y / 128 * 16, so that
// tables of 16 bytes can tell.
struct ByteSet {
    uint8_t of[2 * 16] = {};

    void add(uint32_t y) noexcept { of[place(y)] = static_cast<uint8_t>(of[place(y)] | bit(y)); }
    bool has(uint32_t y) const noexcept { return (of[place(y)] & bit(y)) != 0; }

private:
    static uint32_t place(uint32_t y) noexcept { return y % 16 + y / 128 * 16; }
    static uint32_t bit(uint32_t y) noexcept { return 1u << (y / 16 % 8); }
};

// Whether any of n bytes is in the set.
using HasAnyFn = bool (*)(const uint8_t* y, uint32_t n, const ByteSet& set) noexcept;

}  // namespace ogds
