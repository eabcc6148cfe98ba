// Codec 5 with the shifts of BMI2, which take their count from any register as it is, and lzcnt.
#include <immintrin.h>

#include "huffman_loops.h"

namespace ogds {
namespace {

struct Bmi2Bits {
    static uint64_t low(uint64_t value) noexcept { return _bzhi_u64(value, kHuffmanBits); }
    static uint64_t n_above(uint64_t value) noexcept { return _lzcnt_u64(value); }
    static uint64_t above(uint64_t value, uint64_t n) noexcept { return value >> (n & 63); }
};

}  // namespace

const HuffmanKernels kHuffmanBmi2 = huffman_kernels<Bmi2Bits>();

}  // namespace ogds
