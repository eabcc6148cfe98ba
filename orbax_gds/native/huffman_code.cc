#include "huffman_code.h"

#include <algorithm>

namespace ogds {
namespace {

struct Leaf {
    uint32_t weight;
    uint32_t y;
};

// Calls use(y, code reversed, so that its first bit is the lowest) for each byte that occurs.
template <class Use>
void each_code(const HuffmanLengths& lengths, Use use) noexcept {
    uint32_t next = 0;
    for (uint32_t length = 1; length <= kHuffmanBits; ++length, next *= 2) {
        for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
            if (lengths.of[y] != length) {
                continue;
            }
            uint32_t reversed = 0;
            for (uint32_t bit = 0; bit < length; ++bit) {
                reversed |= ((next >> bit) & 1) << (length - 1 - bit);
            }
            use(y, reversed);
            ++next;
        }
    }
}

}  // namespace

// Package-merge (Larmore and Hirschberg, 1990): the list of a level holds all leaves and the pairs
// of the list before, by weight. The first 2 n - 2 of the last list are taken, of every list before
// it the pairs' members; a leaf's code is as long as it is taken often.
void fit_lengths(const uint32_t (&occurrences)[kHuffmanBytes], HuffmanLengths& lengths) noexcept {
    Leaf leaves[kHuffmanBytes];
    uint32_t n = 0;
    lengths = {};
    for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
        if (occurrences[y] != 0) {
            leaves[n++] = {occurrences[y], y};
        }
    }
    if (n == 1) {
        lengths.of[leaves[0].y] = 1;
        lengths.of[leaves[0].y ^ 1] = 1;
        return;
    }
    std::sort(leaves, leaves + n, [](const Leaf& a, const Leaf& b) noexcept {
        return a.weight != b.weight ? a.weight < b.weight : a.y < b.y;
    });
    bool is_leaf[kHuffmanBits][2 * kHuffmanBytes];
    uint32_t weights[2 * kHuffmanBytes];  // of the list before; at most 11 times 2^28
    uint32_t n_pairs = 0;
    for (uint32_t level = 0; level < kHuffmanBits; ++level) {
        uint32_t merged[2 * kHuffmanBytes];
        uint32_t leaf = 0;
        uint32_t pair = 0;
        const uint32_t n_list = n + n_pairs;
        for (uint32_t i = 0; i < n_list; ++i) {
            const uint32_t paired =
                pair < n_pairs ? weights[2 * pair] + weights[2 * pair + 1] : 0;
            const bool takes_leaf =
                pair == n_pairs || (leaf < n && leaves[leaf].weight <= paired);
            is_leaf[level][i] = takes_leaf;
            merged[i] = takes_leaf ? leaves[leaf++].weight : paired;
            pair += takes_leaf ? 0 : 1;
        }
        std::copy_n(merged, n_list, weights);
        n_pairs = n_list / 2;
    }
    uint32_t taken = 2 * n - 2;
    for (uint32_t level = kHuffmanBits; level-- > 0;) {
        uint32_t n_leaves = 0;
        for (uint32_t i = 0; i < taken; ++i) {
            n_leaves += is_leaf[level][i] ? 1 : 0;
        }
        for (uint32_t i = 0; i < n_leaves; ++i) {
            ++lengths.of[leaves[i].y];
        }
        taken = 2 * (taken - n_leaves);
    }
}

void write_lengths(const HuffmanLengths& lengths, uint8_t* header) noexcept {
    for (uint32_t i = 0; i < kHuffmanHeaderBytes; ++i) {
        header[i] = static_cast<uint8_t>(lengths.of[2 * i] | lengths.of[2 * i + 1] << 4);
    }
}

Status read_lengths(const uint8_t* header, uint32_t n_values, HuffmanLengths& lengths) noexcept {
    uint32_t sum = 0;
    for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
        const uint32_t length = (header[y / 2] >> (y % 2 * 4)) & 15;
        if (length > kHuffmanBits || (length != 0 && y >= n_values)) {
            return Status::kHuffmanLengths;
        }
        sum += length != 0 ? 1u << (kHuffmanBits - length) : 0;
        lengths.of[y] = static_cast<uint8_t>(length);
    }
    return sum == 1u << kHuffmanBits ? Status::kOk : Status::kHuffmanLengths;
}

void build_table(const HuffmanLengths& lengths, HuffmanEncodeTable& table) noexcept {
    std::fill_n(table.of_byte, kHuffmanBytes, kUncoded);
    each_code(lengths, [&](uint32_t y, uint32_t code) noexcept {
        table.of_byte[y] = uint64_t{code} << (64 - lengths.of[y]) | lengths.of[y];
    });
}

void build_table(const HuffmanLengths& lengths, HuffmanDecodeTable& table) noexcept {
    each_code(lengths, [&](uint32_t y, uint32_t code) noexcept {
        const auto entry = static_cast<uint16_t>(y << 8 | lengths.of[y]);
        for (uint32_t bits = code; bits < 1u << kHuffmanBits; bits += 1u << lengths.of[y]) {
            table.of_bits[bits] = entry;
        }
    });
}

}  // namespace ogds
