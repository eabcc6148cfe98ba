// The ladder for SSE 4.2.
#include "bits_portable.h"
#include "ladder_vectors.h"
#include "vector_sse42.h"

namespace ogds {

constinit const LadderKernels kLadderSse42 = make_kernels<Sse42, BitsPortable>();

}  // namespace ogds
