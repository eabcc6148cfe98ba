// The inner loops of codec 5 (FORMAT 7.9), one set per instruction set.
//
// No standard header with inline functions: this file is compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "byte_set.h"
#include "ladder_kernels.h"

namespace ogds {

inline constexpr uint32_t kHuffmanBits = 11;  // of the longest code
inline constexpr uint32_t kHuffmanBytes = 256;
inline constexpr uint32_t kHuffmanStreams = 8;

// The longest stream of a sub-block.
inline constexpr size_t kMaxHuffmanStreamBytes =
    kSubBlockWords / kHuffmanStreams * kHuffmanBits / 8;

// For the next 11 bits the length of the code they begin with in byte 0, so that shifts take it as
// it is, and its byte in byte 1. There is no gap.
struct HuffmanDecodeTable {
    uint16_t of_bits[1u << kHuffmanBits];
};

// Set for a byte without a code, whose length is 0. Those of a sub-block, added up, do not reach
// the codes: they are in the bits kAnyUncoded.
inline constexpr uint64_t kUncoded = uint64_t{1} << 16;
inline constexpr uint64_t kAnyUncoded = (uint64_t{1} << (64 - kHuffmanBits)) - kUncoded;
static_assert(kSubBlockWords * kUncoded < kAnyUncoded);

// The code of each byte in the upper bits, its last bit on top, and its length in byte 0.
struct HuffmanEncodeTable {
    uint64_t of_byte[kHuffmanBytes];
};

// The streams of a sub-block while they grow, each with room for a store beyond its end.
struct HuffmanStreams {
    uint8_t of[kHuffmanStreams][kMaxHuffmanStreamBytes + 8];
    uint32_t n_bytes[kHuffmanStreams];
};

// Writes the streams of m bytes. False if one of them has no code.
using EncodeHuffmanFn = bool (*)(const uint8_t* y, uint32_t m, const HuffmanEncodeTable& table,
                                 HuffmanStreams& streams) noexcept;

// Inverse of streams that lie one after the other, the last of which ends at `ends`[7]. False if
// they are not those of m bytes. Any bytes are safe.
using DecodeHuffmanFn = bool (*)(const uint8_t* streams, const uint32_t (&ends)[kHuffmanStreams],
                                 const HuffmanDecodeTable& table, uint32_t m,
                                 uint8_t* y) noexcept;

struct HuffmanKernels {
    HasAnyFn has_any;
    EncodeHuffmanFn encode;
    DecodeHuffmanFn decode;
};

extern const HuffmanKernels kHuffmanPortable;
extern const HuffmanKernels kHuffmanBmi2;

}  // namespace ogds
