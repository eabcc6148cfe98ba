// One bit of each of eight bytes, and the eight bits side by side.
#pragma once

#include <array>
#include <cstdint>

namespace ogds {

// Bit i of the index in bit 0 of byte i.
inline constexpr std::array<uint64_t, 256> kSpread = [] {
    std::array<uint64_t, 256> table{};
    for (uint32_t bits = 0; bits < 256; ++bits) {
        for (uint32_t i = 0; i < 8; ++i) {
            table[bits] |= static_cast<uint64_t>((bits >> i) & 1) << (8 * i);
        }
    }
    return table;
}();

// Inverse: bit 0 of byte i in bit i. The other bits do not count.
inline uint8_t gathered(uint64_t bytes) noexcept {
    return static_cast<uint8_t>((bytes & 0x0101010101010101u) * 0x0102040810204080u >> 56);
}

}  // namespace ogds
