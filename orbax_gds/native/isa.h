// The kernels of one instruction set as a table of function pointers, chosen once.
#pragma once

#include <cstddef>

#include "ans_kernels.h"
#include "ans_words.h"
#include "crc32c.h"
#include "delta_kernels.h"
#include "huffman_kernels.h"
#include "ladder_kernels.h"

namespace ogds {

struct Kernels {
    const char* name;
    Crc32cFn crc32c;
    Crc32cCopyFn crc32c_copy;
    const LadderKernels* ladder;
    const AnsKernels* ans;
    const AnsWordKernels* ans_words;
    const HuffmanKernels* huffman;
    const DeltaKernels* delta;
};

// The tables this machine can run, best first; the last is always "scalar".
size_t available_kernels(const Kernels** tables, size_t capacity) noexcept;

// The table in use: the best one until use_kernels names another.
const Kernels& kernels() noexcept;

// Switches to the table of that name. False, and no change, if this machine cannot run it.
bool use_kernels(const char* name) noexcept;

// Switches to any table, which must outlive its use.
void use_kernels(const Kernels& table) noexcept;

}  // namespace ogds
