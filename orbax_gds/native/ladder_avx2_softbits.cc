// The ladder for AVX2 on processors whose pext and pdep are slow.
#include "bits_portable.h"
#include "ladder_vectors.h"
#include "vector_avx2.h"

namespace ogds {

constinit const LadderKernels kLadderAvx2Softbits = make_kernels<Avx2, BitsPortable>();

}  // namespace ogds
