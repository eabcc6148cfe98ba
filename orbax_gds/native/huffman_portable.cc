// Codec 5 on any machine: the twin of what other instruction sets do.
#include "huffman_loops.h"

namespace ogds {
namespace {

struct PortableBits {
    static uint64_t low(uint64_t value) noexcept {
        return value & ((uint64_t{1} << kHuffmanBits) - 1);
    }
    static uint64_t n_above(uint64_t value) noexcept {
        return static_cast<uint64_t>(__builtin_clzll(value));
    }
    static uint64_t above(uint64_t value, uint64_t n) noexcept { return value >> (n & 63); }
};

}  // namespace

const HuffmanKernels kHuffmanPortable = huffman_kernels<PortableBits>();

}  // namespace ogds
