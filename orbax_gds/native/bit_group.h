// 64 values of the ladder as bit planes.
#pragma once

#include <cstdint>

#include "bytes.h"

namespace ogds {
namespace {

struct Group {
    uint64_t b0, b1, b2, b3;
};

__extension__ using Wide = unsigned __int128;

// Appends bits to the last 8 bytes of a plane, of which so many bits are there as the power of two
// says and the others are 0; what they have no room for begins the next 8. No branch, since whether
// there is room is a matter of chance; a product is the shift by which no bit is lost.
inline void append_bits(uint64_t bits, uint64_t power, uint8_t* last) noexcept {
    const Wide moved = Wide{bits} * power;
    store_u64le(last, load_u64le(last) | static_cast<uint64_t>(moved));
    store_u64le(last + 8, static_cast<uint64_t>(moved >> 64));
}

}  // namespace
}  // namespace ogds
