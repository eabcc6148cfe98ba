// Whether and how codec 2 codes a chunk, judged by a sample.
#pragma once

#include "modelled.h"

namespace ogds {

struct ModelledPlan {
    ModelledTables tables;
    // What exponents, offsets, signs and low bits take, less the full rest: per as many words as
    // the sample has. Comparable to the bits of choose_tables, and below 0 where much is left out.
    int64_t bits;
};

// Plans what takes the fewest bits; `counts` is the sample that sample_exponents took. The offsets
// of a prediction lie in `offsets`, which has room for offset_bytes of the chunk or is nullptr.
// False if nothing is to be gained over the ladder; a matrix is then hardly looked at. With
// `always` there is a plan, and it predicts where there are columns.
bool plan_modelled(const ChunkWords& chunk, const Dtype& dtype, const ExponentCounts& counts,
                   bool always, uint8_t* offsets, ModelledPlan& plan) noexcept;

}  // namespace ogds
