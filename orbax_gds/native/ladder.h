// Codec 1, ladder: FORMAT 7.4.
#pragma once

#include "block_map.h"
#include "ladder_tables.h"
#include "workspace.h"

namespace ogds {

// Codes the normal words of a chunk with the given tables.
Status encode_ladder(const uint8_t* words, NormalRuns runs, uint32_t n_normal_words,
                     const Dtype& dtype, const LadderTables& tables, PayloadWriter& out,
                     Workspace& workspace) noexcept;

// Inverse. With words == nullptr everything is decoded and checked, and nothing kept.
Status decode_ladder(PayloadReader& in, NormalRuns runs, uint32_t n_normal_words,
                     const Dtype& dtype, uint8_t* words, Workspace& workspace) noexcept;

// The counts at the start of a sub-block and where its parts lie.
struct SubBlockHead {
    uint32_t n_values[kMaxLevels];
    uint32_t n_escapes;
    size_t fields_bytes;
    size_t levels_bytes;
    size_t escapes_bytes;
};

Status read_sub_block_head(PayloadReader& in, uint32_t m, const Dtype& dtype,
                           const LadderTables& tables, SubBlockHead& head) noexcept;

// Whether n escaped exponents are exponents of the split at all.
bool escapes_fit(Split split, const uint8_t* escapes, uint32_t n) noexcept;

}  // namespace ogds
