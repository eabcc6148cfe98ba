// The words of codec 3 for AVX2.
#include "ans_word_vectors.h"
#include "vector_avx2.h"

namespace ogds {

constinit const AnsWordKernels kAnsWordsAvx2 = ans_word_kernels<Avx2>();

}  // namespace ogds
