// Words that follow from those of another leaf: FORMAT 4.2, derived shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ogds {

enum class Rule : uint8_t { kCopy = 1, kRound = 2 };

constexpr uint8_t kRoundFrom = 18;  // dtype ids of FORMAT 5: float32
constexpr uint8_t kRoundTo = 16;    // bfloat16
constexpr size_t kRoundFromBytes = 4;
constexpr size_t kRoundToBytes = 2;

// Rounds n float32 words to bfloat16 words, to nearest, ties to even; a NaN stays one.
void round_words(const uint8_t* words, size_t n, uint8_t* rounded) noexcept;

// Whether all words of `target` follow from those of `source`; ends soon after the first that
// does not. Lengths that do not go together are a no.
bool derives(std::span<const uint8_t> source, std::span<const uint8_t> target, Rule rule) noexcept;

}  // namespace ogds
