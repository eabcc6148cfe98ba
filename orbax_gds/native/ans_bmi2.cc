// Codec 3 with the shifts and masks of BMI2, which take their count from any register as it is.
#include <immintrin.h>

#include "ans_loops.h"

namespace ogds {
namespace {

struct Bmi2Bits {
    static uint64_t low(uint64_t value, uint64_t n) noexcept {
        return _bzhi_u64(value, static_cast<uint32_t>(n));
    }
};

}  // namespace

const AnsKernels kAnsBmi2 = ans_kernels<Bmi2Bits>();

}  // namespace ogds
