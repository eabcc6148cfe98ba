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
// Fewer than 2 * kMaxGroups calls. Before, ahead(first) for each group of a call that comes later.
template <class Use, class Ahead>
void each_sampled_group(const uint8_t* map, uint32_t n_words, Use use, Ahead ahead) noexcept {
    constexpr uint32_t kAheadGroups = 8;
    const uint32_t n_groups = (n_words + kGroupWords - 1) / kGroupWords;
    const uint32_t n_looked_at = std::clamp(n_groups / kOneIn, kMinGroups, kMaxGroups);
    const uint32_t stride = std::max(n_groups / n_looked_at, 1u);
    const uint32_t n_calls = n_groups / stride;
    // The place within the stride moves on: a period of the rows must not hide columns.
    const auto first_of = [=](uint32_t i) { return (i * stride + 7 * i % stride) * kGroupWords; };
    for (uint32_t i = 0; i < n_calls; ++i) {
        const uint32_t first = first_of(i);
        if (i + kAheadGroups < n_calls) {
            ahead(first_of(i + kAheadGroups));
        }
        if (map == nullptr || block_code(map, first / kBlockWords) == BlockCode::kNormal) {
            use(first, std::min(kGroupWords, n_words - first));
        }
    }
}

template <class Use>
void each_sampled_group(const uint8_t* map, uint32_t n_words, Use use) noexcept {
    each_sampled_group(map, n_words, use, [](uint32_t) {});
}

}  // namespace ogds
