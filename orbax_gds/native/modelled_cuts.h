// How an encoder of codec 2 cuts words into sub-blocks, so that few words that need their low bits
// do not keep those of many: FORMAT 7.6.
#pragma once

#include "dtypes.h"
#include "ladder_kernels.h"

namespace ogds {

inline constexpr uint32_t kMaxSubBlockSize = 7;  // of FORMAT: 256 words

// An encoder's smallest sub-blocks: smaller ones gain less than their heads take time.
inline constexpr uint32_t kMaxCutSize = 4;
inline constexpr uint32_t kMaxCuts = 1u << kMaxCutSize;

// A sub-block to be coded.
struct Cut {
    uint32_t n_words;
    uint8_t size;
    uint8_t trimmed_bits;
};

// Cuts m words, at most a whole sub-block of size 0, so that they take the fewest bits with heads
// of head_bytes; returns the number of sub-blocks.
uint32_t cut_sub_blocks(const uint8_t* words, uint32_t m, const Dtype& dtype, size_t head_bytes,
                        Cut (&cuts)[kMaxCuts]) noexcept;

}  // namespace ogds
