// How large differences are expected to be (FORMAT 7.11): of a chunk, or of each of its sub-blocks.
#pragma once

#include "delta_kernels.h"
#include "dtypes.h"

namespace ogds {

inline constexpr size_t kDeltaScaleBytes = 2;

struct DeltaScale {
    uint8_t shift = 0;
    uint8_t low_bytes = 0;
    bool exponents = false;

    bool operator==(const DeltaScale&) const noexcept = default;
};

// Whether exponents of the base may tell what is expected.
constexpr bool has_delta_exponents(Split split) noexcept {
    return split != Split::kNone && split_bits(split).exponent <= 8;
}

// Low bytes of differences that may be written as they are: 2 are left above them.
constexpr uint32_t max_low_bytes(const Dtype& dtype) noexcept {
    return dtype.container_bytes <= 2 ? dtype.container_bytes - 1u : dtype.container_bytes - 2u;
}

inline DeltaScale scale_of(const DeltaTables& tables) noexcept {
    return {static_cast<uint8_t>(tables.ladder.emax), tables.low_bytes, tables.exponents};
}

inline void set_scale(DeltaTables& tables, DeltaScale scale) noexcept {
    tables.ladder.emax = scale.shift;
    tables.low_bytes = scale.low_bytes;
    tables.exponents = scale.exponents;
}

inline bool is_scale(DeltaScale scale, const Dtype& dtype) noexcept {
    return scale.low_bytes <= max_low_bytes(dtype) &&
           (scale.exponents ? has_delta_exponents(dtype.split) : scale.shift <= kMaxLowPlanes);
}

// As the head of a sub-block has it: with exponents bit 7 stands beside the low bytes.
inline void write_scale(DeltaScale scale, uint8_t* to) noexcept {
    to[0] = scale.shift;
    to[1] = static_cast<uint8_t>(scale.low_bytes | (scale.exponents ? 128 : 0));
}

inline DeltaScale read_scale(const uint8_t* from) noexcept {
    return {from[0], static_cast<uint8_t>(from[1] & 127), (from[1] & 128) != 0};
}

}  // namespace ogds
