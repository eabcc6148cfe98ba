// Codec 6 for SSE 4.2.
#include "bits_portable.h"
#include "delta_vectors.h"
#include "vector_sse42.h"

namespace ogds {

constinit const DeltaKernels kDeltaSse42 =
    delta_kernels<Sse42, BitsPortable>(split_delta_long, merge_delta_long);

}  // namespace ogds
