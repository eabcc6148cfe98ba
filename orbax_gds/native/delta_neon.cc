// Codec 6 for NEON.
#include "bits_portable.h"
#include "delta_vectors.h"
#include "vector_neon.h"

namespace ogds {

constinit const DeltaKernels kDeltaNeon =
    delta_kernels<Neon, BitsPortable>(split_delta_long, merge_delta_long);

}  // namespace ogds
