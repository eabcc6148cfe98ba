// Codec 1, ladder: FORMAT 7.4.
#pragma once

#include "block_map.h"
#include "ladder_tables.h"
#include "sub_block.h"
#include "workspace.h"

namespace ogds {

// Codes the normal words of a chunk with the given tables.
Status encode_ladder(const uint8_t* words, NormalRuns runs, uint32_t n_normal_words,
                     const Dtype& dtype, const LadderTables& tables, PayloadWriter& out,
                     Workspace& workspace) noexcept;

// Inverse. With words == nullptr everything is decoded and checked, and nothing kept.
Status decode_ladder(PayloadReader& in, NormalRuns runs, uint32_t n_normal_words,
                     const Dtype& dtype, uint8_t* words, Workspace& workspace) noexcept;

Status read_sub_block_head(PayloadReader& in, uint32_t m, const Dtype& dtype,
                           const LadderTables& tables, SubBlockHead& head) noexcept;

}  // namespace ogds
