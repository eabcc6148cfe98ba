#include "modelled_cuts.h"

#include <algorithm>
#include <cstring>

#include "modelled.h"

namespace ogds {
namespace {

constexpr uint32_t kPieceWords = kSubBlockWords >> kMaxCutSize;

template <class Word>
uint32_t any_bits(const uint8_t* words, uint32_t n) noexcept {
    Word all = 0;
    for (uint32_t i = 0; i < n; ++i) {
        Word word;
        std::memcpy(&word, words + i * sizeof word, sizeof word);
        all = static_cast<Word>(all | word);
    }
    return all;
}

// The sub-blocks that could be, as a binary tree: node 1 is one of size 0, the nodes 2 k and
// 2 k + 1 are the halves of node k.
class Tree {
public:
    Tree(const uint8_t* words, uint32_t m, const Dtype& dtype, size_t head_bytes) noexcept
        : split_(dtype.split), head_bits_(static_cast<int64_t>(8 * head_bytes)) {
        const uint32_t most = max_trimmed_bits(dtype.split);
        for (uint32_t piece = 0; piece < kMaxCuts; ++piece) {
            Node& node = nodes_[kMaxCuts + piece];
            const uint32_t first = std::min(m, piece * kPieceWords);
            node.n_words = std::min(m - first, kPieceWords);
            const uint8_t* at = words + size_t{first} * dtype.container_bytes;
            const uint32_t bits = dtype.container_bytes == 2
                                      ? any_bits<uint16_t>(at, node.n_words)
                                      : any_bits<uint32_t>(at, node.n_words);
            node.zero_bits = static_cast<uint8_t>(__builtin_ctz(bits | 1u << most));
            node.bits = whole_bits(node);
        }
        for (uint32_t k = kMaxCuts - 1; k > 0; --k) {
            join(nodes_[2 * k], nodes_[2 * k + 1], nodes_[k]);
        }
    }

    uint32_t cuts(uint32_t node, uint8_t size, Cut* cuts) const noexcept {
        const Node& root = nodes_[node];
        if (root.n_words == 0) {
            return 0;
        }
        if (node >= kMaxCuts || !root.is_split) {  // a single piece is not split
            *cuts = {root.n_words, size, static_cast<uint8_t>(trim(root))};
            return 1;
        }
        const auto half = static_cast<uint8_t>(size + 1);
        const uint32_t n = this->cuts(2 * node, half, cuts);
        return n + this->cuts(2 * node + 1, half, cuts + n);
    }

private:
    struct Node {
        uint32_t n_words = 0;
        uint8_t zero_bits = 0;  // low ones of every word, as far as they can be trimmed
        bool is_split = false;
        int64_t bits = 0;  // of the heads, less those trimmed
    };

    int64_t whole_bits(const Node& node) const noexcept {
        return node.n_words == 0 ? 0 : head_bits_ - int64_t{node.n_words} * trim(node);
    }

    uint32_t trim(const Node& node) const noexcept {
        return useful_trim(split_, node.zero_bits, node.n_words);
    }

    void join(const Node& first, const Node& second, Node& node) const noexcept {
        node.n_words = first.n_words + second.n_words;
        // Where there are no words nothing is in the way of trimming.
        node.zero_bits = second.n_words == 0 ? first.zero_bits
                                             : std::min(first.zero_bits, second.zero_bits);
        node.bits = whole_bits(node);
        node.is_split = first.bits + second.bits < node.bits;
        node.bits = std::min(node.bits, first.bits + second.bits);
    }

    Split split_;
    int64_t head_bits_;
    Node nodes_[2 * kMaxCuts];
};

}  // namespace

uint32_t cut_sub_blocks(const uint8_t* words, uint32_t m, const Dtype& dtype, size_t head_bytes,
                        Cut (&cuts)[kMaxCuts]) noexcept {
    return Tree(words, m, dtype, head_bytes).cuts(1, 0, cuts);
}

}  // namespace ogds
