// Codec 0, raw: FORMAT 7.3.
#pragma once

#include "block_map.h"

namespace ogds {

// Writes the normal words of a chunk as they lie in memory, or packed if narrower than a byte.
Status encode_raw(const uint8_t* words, NormalRuns runs, const Dtype& dtype, PayloadWriter& out,
                  uint32_t n_normal_words) noexcept;

// Inverse. With words == nullptr it only checks.
Status decode_raw(PayloadReader& in, NormalRuns runs, const Dtype& dtype, uint32_t n_normal_words,
                  bool keeps_words, uint8_t* words) noexcept;

}  // namespace ogds
