// Sub-blocks of codec 6 few of whose words have changed: only these are touched, where they lie.
#pragma once

#include "block_map.h"
#include "delta_kernels.h"

namespace ogds {

// Which words of a sub-block differ from the base's, in their order.
struct ChangedWords {
    // Measured: up to so many it is faster than to merge all.
    static constexpr uint32_t kMost = kSubBlockWords / 64;
    uint32_t n;
    uint16_t at[kMost];
};

// Whether words that are the base's have a symbol of their own and nothing below it.
bool has_unchanged_symbol(const DeltaTables& tables) noexcept;

// Which of m words have another symbol than that; false if these are so many that it is faster to
// merge all. What the ranks have behind the words is ignored.
bool find_few(const RankPlanes& ranks, uint32_t m, const DeltaTables& tables,
              ChangedWords& changed) noexcept;

// Changes those words of the next m of `runs` that have changed; `words` are the base's before.
// False, as of MergeDeltaFn.
bool merge_few(const ChangedWords& changed, const RankPlanes& ranks, uint32_t m,
               const DeltaFormat& format, const DeltaTables& tables, const uint8_t* escapes,
               uint32_t n_escapes, const LowBitsView& below, NormalRuns& runs,
               uint8_t* words) noexcept;

}  // namespace ogds
