// Which words of a chunk its choices look at: a fixed sample, spread evenly.
#pragma once

#include <algorithm>

#include "block_map.h"

namespace ogds {

inline constexpr uint32_t kGroupWords = 32;  // consecutive: a cache line of bf16, two of fp32
inline constexpr uint32_t kOneIn = 64;       // groups are looked at, but kMinGroups to kMaxGroups
inline constexpr uint32_t kMinGroups = 64;
inline constexpr uint32_t kMaxGroups = 256;

// Calls use(first, n) for groups of normal words: 2,048 to 8,192 words of a chunk that has as many.
// Fewer than 2 * kMaxGroups calls.
template <class Use>
void each_sampled_group(const uint8_t* map, uint32_t n_words, Use use) noexcept {
    const uint32_t n_groups = (n_words + kGroupWords - 1) / kGroupWords;
    const uint32_t n_looked_at = std::clamp(n_groups / kOneIn, kMinGroups, kMaxGroups);
    const uint32_t stride = std::max(n_groups / n_looked_at, 1u);
    for (uint32_t i = 0; i < n_groups / stride; ++i) {
        // The place within the stride moves on: a period of the rows must not hide columns.
        const uint32_t first = (i * stride + 7 * i % stride) * kGroupWords;
        if (map == nullptr || block_code(map, first / kBlockWords) == BlockCode::kNormal) {
            use(first, std::min(kGroupWords, n_words - first));
        }
    }
}

}  // namespace ogds
