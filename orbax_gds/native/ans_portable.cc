// Codec 3 on any machine: the twin of what other instruction sets do.
#include "ans_loops.h"

namespace ogds {
namespace {

struct PortableBits {
    static uint64_t low(uint64_t value, uint64_t n) noexcept {
        return value & ((uint64_t{1} << (n & 0xFF)) - 1);
    }
};

}  // namespace

const AnsKernels kAnsPortable = ans_kernels<PortableBits>();

}  // namespace ogds
