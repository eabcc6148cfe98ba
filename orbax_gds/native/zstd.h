// Codec 4, zstd: FORMAT 7.8. The bytes of the words, plane by plane, through workspace.zstd.
#pragma once

#include "block_map.h"
#include "workspace.h"

namespace ogds {

// Whether coding may pay, from a piece of the words that is coded for a look.
bool zstd_is_hopeful(const uint8_t* words, NormalRuns runs, uint32_t n_normal_words,
                     const Dtype& dtype, int level, size_t min_saving,
                     Workspace& workspace) noexcept;

// Codes the normal words of a chunk. kNoSpace if they need more room than `out` has.
Status encode_zstd(const uint8_t* words, NormalRuns runs, uint32_t n_normal_words,
                   const Dtype& dtype, int level, PayloadWriter& out,
                   Workspace& workspace) noexcept;

// Inverse; takes all that is left in `in`. With words == nullptr it only checks.
Status decode_zstd(PayloadReader& in, NormalRuns runs, uint32_t n_normal_words,
                   const Dtype& dtype, uint8_t* words, Workspace& workspace) noexcept;

}  // namespace ogds
