// The code of codec 5 (FORMAT 7.9): the length of each byte's code, and the tables that follow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman_kernels.h"
#include "status.h"

namespace ogds {

inline constexpr size_t kHuffmanHeaderBytes = kHuffmanBytes / 2;

// Bits of each byte's code: 0 = it does not occur, at most 11.
struct HuffmanLengths {
    uint8_t of[kHuffmanBytes];
};

// The lengths with which bytes that occur so often take the fewest bits. At least one occurs, and
// all together do at most 2^28 times.
void fit_lengths(const uint32_t (&occurrences)[kHuffmanBytes], HuffmanLengths& lengths) noexcept;

// The lengths as the header has them.
void write_lengths(const HuffmanLengths& lengths, uint8_t* header) noexcept;

// Inverse; no byte from n_values on may occur.
Status read_lengths(const uint8_t* header, uint32_t n_values, HuffmanLengths& lengths) noexcept;

void build_table(const HuffmanLengths& lengths, HuffmanEncodeTable& table) noexcept;
void build_table(const HuffmanLengths& lengths, HuffmanDecodeTable& table) noexcept;

}  // namespace ogds
