// The ladder for AVX2, with BMI2's extraction and deposit of bits.
#include "bits_bmi2.h"
#include "ladder_vectors.h"
#include "vector_avx2.h"

namespace ogds {

constinit const LadderKernels kLadderAvx2 = make_kernels<Avx2, BitsBmi2>();

}  // namespace ogds
