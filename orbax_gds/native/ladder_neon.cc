// The ladder for 64-bit Arm.
#include "bits_portable.h"
#include "ladder_vectors.h"
#include "vector_neon.h"

namespace ogds {

constinit const LadderKernels kLadderNeon = make_kernels<Neon, BitsPortable>();

}  // namespace ogds
