// Codec 6 for AVX2 with BMI2's extraction and deposit of bits.
#include "bits_bmi2.h"
#include "delta_vectors.h"
#include "vector_avx2.h"

namespace ogds {

constinit const DeltaKernels kDeltaAvx2 =
    delta_kernels<Avx2, BitsBmi2>(split_delta_long, merge_delta_long);

}  // namespace ogds
