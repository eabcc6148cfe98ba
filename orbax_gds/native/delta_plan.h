// What a sample says of a delta: what codec 6 codes a chunk with, and how many bits that takes.
#pragma once

#include "delta.h"

namespace ogds {

// The expected bits of `total` words of a chunk.
struct DeltaEstimate {
    uint64_t bits = 0;
    uint32_t total = 0;
};

// Chooses what a chunk is coded with, whose base is known.
DeltaEstimate plan_delta(const ChunkWords& chunk, const Dtype& dtype, DeltaPlan& plan) noexcept;

}  // namespace ogds
