// Codec 6 for AVX2 without BMI2, or with a slow one.
#include "bits_portable.h"
#include "delta_vectors.h"
#include "vector_avx2.h"

namespace ogds {

constinit const DeltaKernels kDeltaAvx2Softbits =
    delta_kernels<Avx2, BitsPortable>(split_delta_long, merge_delta_long);

}  // namespace ogds
