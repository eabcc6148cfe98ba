// What one thread needs that codes frames: scratch memory, in which calls may leave anything, and
// the codings that live outside. Zero it once.
#pragma once

#include "ans_kernels.h"
#include "block_map.h"
#include "delta_kernels.h"
#include "foreign.h"
#include "huffman_kernels.h"
#include "ladder_kernels.h"

namespace ogds {

// Of a sub-block of codec 3.
struct AnsWorkspace {
    AnsEncodeTable encode;
    AnsDecodeTable decode;
    alignas(64) uint8_t y[kSubBlockWords];
    alignas(64) uint8_t rests[kSubBlockWords * 4];
    alignas(64) uint8_t stream[kMaxStreamBytes + 8];
};

// Of a sub-block of codec 5.
struct HuffmanWorkspace {
    HuffmanEncodeTable encode;
    HuffmanDecodeTable decode;
    HuffmanStreams streams;
};

// Of a sub-block of codec 6.
struct DeltaWorkspace {
    LowBits below;
    alignas(64) uint8_t base[kSubBlockWords * 8];
    alignas(64) uint8_t escapes[kSubBlockWords * 8];
};

struct Workspace {
    RankPlanes planes[2];
    alignas(64) uint8_t words[kSubBlockWords * 8];
    // Coded, before it is copied to the frame: fp64 has 53 bits of rest, at most 15 in levels and
    // 16 of escape a word, and some bytes of counts.
    alignas(64) uint8_t sub_block[kSubBlockWords * 11];
    alignas(64) uint8_t escapes[kSubBlockWords * 2];
    // Of a sub-block of codec 2; the prediction of codec 3, too.
    alignas(64) uint8_t predicted[kSubBlockWords];
    alignas(64) uint8_t fields[kSubBlockWords * 3];
    alignas(64) uint8_t bytes[kSubBlockWords];
    alignas(64) uint8_t bitmaps[level_bytes(4, kSubBlockWords)];
    AnsWorkspace ans;
    HuffmanWorkspace huffman;
    DeltaWorkspace delta;
    uint8_t map[map_bytes_of(kMaxChunkWords)];
    const ForeignCodec* zstd = nullptr;  // codec 4 is unknown without
    bool keeps_words = false;  // decoded words are wanted in a cache: they are read again soon
};

}  // namespace ogds
