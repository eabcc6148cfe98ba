// Codec 5 with the shifts of BMI2, which take their count from any register as it is, lzcnt, and
// tables looked up by AVX2.
#include <immintrin.h>

#include "huffman_loops.h"
#include "vector_avx2.h"

namespace ogds {
namespace {

struct Bmi2Bits {
    static uint64_t low(uint64_t value) noexcept { return _bzhi_u64(value, kHuffmanBits); }
    static uint64_t n_above(uint64_t value) noexcept { return _lzcnt_u64(value); }
    static uint64_t above(uint64_t value, uint64_t n) noexcept { return value >> (n & 63); }
    static bool has_any(const uint8_t* y, uint32_t n, const ByteSet& set) noexcept {
        static constexpr uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                              1, 2, 4, 8, 16, 32, 64, 128};
        using T = Avx2::T;
        const T bits = Avx2::table(kBits);
        const T low = Avx2::table(set.of);
        const T high = Avx2::table(set.of + 16);
        const T top = Avx2::splat(0x80);
        const T column = Avx2::splat(0x8F);  // an index with the top bit looks up 0
        T any = Avx2::splat(0);
        uint32_t i = 0;
        for (; i + Avx2::kBytes <= n; i += Avx2::kBytes) {
            const T value = Avx2::load_whole(y + i);
            const T in_low = Avx2::lookup(low, Avx2::and_(value, column));
            const T in_high = Avx2::lookup(high, Avx2::and_(Avx2::xor_(value, top), column));
            const T row = Avx2::and_(Avx2::right16<4>(value), Avx2::splat(0x0F));
            any = Avx2::or_(any, Avx2::and_(Avx2::or_(in_low, in_high), Avx2::lookup(bits, row)));
        }
        bool left = false;
        for (; i < n; ++i) {
            left |= has_byte(set, y[i]);
        }
        return left || Avx2::any(any);
    }
};

}  // namespace

const HuffmanKernels kHuffmanBmi2 = huffman_kernels<Bmi2Bits>();

}  // namespace ogds
