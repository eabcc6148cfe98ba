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
    static bool has_any(const uint8_t* y, uint32_t n, const ByteSet& set) noexcept {
        uint8_t is_in[kHuffmanBytes];
        for (uint32_t value = 0; value < kHuffmanBytes; ++value) {
            is_in[value] = has_byte(set, value) ? 1 : 0;
        }
        uint32_t any = 0;
        for (uint32_t i = 0; i < n; ++i) {
            any |= is_in[y[i]];
        }
        return any != 0;
    }
};

}  // namespace

const HuffmanKernels kHuffmanPortable = huffman_kernels<PortableBits>();

}  // namespace ogds
