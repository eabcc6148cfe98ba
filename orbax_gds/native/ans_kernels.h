// The inner loops of codec 3 (FORMAT 7.7), one set per instruction set.
//
// No standard header with inline functions: this file is compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "byte_set.h"
#include "ladder_kernels.h"

namespace ogds {

inline constexpr uint32_t kAnsStateBits = 12;
inline constexpr uint32_t kAnsStates = 1u << kAnsStateBits;
inline constexpr uint32_t kAnsLanes = 8;
inline constexpr uint32_t kAnsBytes = 256;  // values of the coded byte y

// The longest stream of a sub-block: 12 bits a word and a lane, and the byte of skipped bits.
inline constexpr size_t kMaxStreamBytes = (kSubBlockWords + kAnsLanes) * kAnsStateBits / 8 + 1;

// For each state its number of bits in byte 0, so that shifts take it as it is, y in byte 1, and
// base in the upper 16 bits. Every base plus any such bits is a state.
struct AnsDecodeTable {
    uint32_t of_state[kAnsStates];
};

// States are counted from 4096 on here. From state x the byte y writes the low n bits of x, where
// n is (x + of_byte[y].bits) >> 16, and goes on to next[(x >> n) + of_byte[y].first], all of it
// modulo 2^32.
struct AnsEncodeTable {
    struct Byte {
        uint32_t bits;
        uint32_t first;
    };
    Byte of_byte[kAnsBytes];
    uint16_t next[kAnsStates];
    ByteSet unknown;  // these write no bits and go on to any state
};

// Adds to counts[y] how often each y occurs among n bytes, n < 2^32.
using CountBytesFn = void (*)(const uint8_t* y, size_t n, uint32_t* counts) noexcept;

// Writes the stream of m bytes so that it ends at `end`; returns its length. One of bytes that the
// table does not know does not bring them back. Before `end` lie kMaxStreamBytes + 8 bytes.
using EncodeStreamFn = size_t (*)(const uint8_t* y, uint32_t m, const AnsEncodeTable& table,
                                  uint8_t* end) noexcept;

// Inverse. False if the stream is not one of m bytes. Any bytes are safe.
using DecodeStreamFn = bool (*)(const uint8_t* stream, size_t n_bytes,
                                const AnsDecodeTable& table, uint32_t m, uint8_t* y) noexcept;

struct AnsKernels {
    CountBytesFn count_bytes;
    EncodeStreamFn encode_stream;
    DecodeStreamFn decode_stream;
};

extern const AnsKernels kAnsPortable;
extern const AnsKernels kAnsBmi2;

}  // namespace ogds
