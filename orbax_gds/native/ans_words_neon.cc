// The words of codec 3 for NEON.
#include "ans_word_vectors.h"
#include "vector_neon.h"

namespace ogds {

constinit const AnsWordKernels kAnsWordsNeon = ans_word_kernels<Neon>();

}  // namespace ogds
