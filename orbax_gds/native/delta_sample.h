// The words of a chunk that the plan of a delta looks at, and what its base's words have lost.
#pragma once

#include "delta.h"
#include "sampling.h"

namespace ogds {

// Words of the sample in their order: how large z is, and the exponent of the base.
struct DeltaSample {
    static constexpr uint32_t kMost = 2 * kMaxGroups * kGroupWords;

    uint32_t n = 0;
    uint16_t values[kMost];  // 8 times the bits of z, and its three below the first that is set
    uint8_t exponents[kMost];
    uint8_t first_exponent = 255;  // of all
    uint8_t last_exponent = 0;
    uint32_t n_scales = 0;
    uint32_t ends[DeltaPlan::kMostScales] = {};  // of the words that share a scale
};

// What the base's words have lost by weight decay; 0 if differences are not smaller with it.
uint16_t find_decay(const ChunkWords& chunk, const Dtype& dtype) noexcept;

// The chunk has a normal word.
void take_sample(const ChunkWords& chunk, const Dtype& dtype, uint32_t decay,
                 DeltaSample& sample) noexcept;

}  // namespace ogds
