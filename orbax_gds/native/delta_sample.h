// The words of a chunk that the plan of a delta looks at, and what its base's words have lost.
#pragma once

#include "delta.h"
#include "sampling.h"

namespace ogds {

// Words of the sample in their order: bits of z, its upper four from the first that is set on, and
// exponent of the base.
struct DeltaSample {
    static constexpr uint32_t kMost = 2 * kMaxGroups * kGroupWords;

    uint32_t n = 0;
    uint8_t sizes[kMost];
    uint8_t tops[kMost];
    uint8_t exponents[kMost];
    uint32_t n_scales = 0;
    uint32_t ends[DeltaPlan::kMostScales] = {};  // of the words that share a scale
};

// What the base's words have lost by weight decay; 0 if differences are not smaller with it.
uint16_t find_decay(const ChunkWords& chunk, const Dtype& dtype) noexcept;

// The chunk has a normal word.
void take_sample(const ChunkWords& chunk, const Dtype& dtype, uint32_t decay,
                 DeltaSample& sample) noexcept;

}  // namespace ogds
