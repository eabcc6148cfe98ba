// The words of codec 3 for SSE 4.2.
#include "ans_word_vectors.h"
#include "vector_sse42.h"

namespace ogds {

constinit const AnsWordKernels kAnsWordsSse42 = ans_word_kernels<Sse42>();

}  // namespace ogds
