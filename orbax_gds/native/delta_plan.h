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

// Which of so many scales the sub-block has that begins at a normal word.
constexpr uint32_t scale_at(uint32_t word, uint32_t n_normal_words, uint32_t n_scales) noexcept {
    const uint32_t n = (n_normal_words + kSubBlockWords - 1) / kSubBlockWords;
    return static_cast<uint32_t>(uint64_t{word / kSubBlockWords} * n_scales / n);
}

}  // namespace ogds
