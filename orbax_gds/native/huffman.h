// Codec 5, huffman: FORMAT 7.9.
#pragma once

#include "block_map.h"
#include "huffman_code.h"
#include "payload.h"
#include "workspace.h"

namespace ogds {

inline constexpr size_t kHuffmanHeadBytes = 2 * kHuffmanStreams;  // of a sub-block

// Whether words of a dtype can be coded.
constexpr bool is_huffman(const Dtype& dtype) noexcept { return dtype.bits <= 8; }

// The code of a chunk, and what follows from it.
struct HuffmanPlan {
    uint32_t occurrences[kHuffmanBytes];  // among the words that were counted; 0: not at all
    HuffmanLengths lengths;
    size_t n_bytes;  // that the chunk is expected to take
};

void plan_huffman(const ChunkWords& chunk, const Dtype& dtype, HuffmanPlan& plan,
                  Workspace& workspace) noexcept;

// Codes the normal words of a chunk.
Status encode_huffman(const ChunkWords& chunk, const Dtype& dtype, const HuffmanPlan& plan,
                      PayloadWriter& out, Workspace& workspace) noexcept;

// Inverse. With words == nullptr everything is decoded and checked, and nothing kept.
Status decode_huffman(PayloadReader& in, NormalRuns runs, uint32_t n_normal_words,
                      const Dtype& dtype, uint8_t* words, Workspace& workspace) noexcept;

// Reads the head of a sub-block: where each stream ends, counted from the start of the first.
Status read_huffman_head(PayloadReader& in, uint32_t (&ends)[kHuffmanStreams]) noexcept;

}  // namespace ogds
