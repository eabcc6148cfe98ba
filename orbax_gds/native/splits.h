// How a floating-point word is cut up: FORMAT 7.2.
//
// No standard header with inline functions: this file is compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ogds {

enum class Split : uint8_t {
    kNone,
    kBf16,
    kFp16,
    kFp32,
    kFp64,
    kE4m3,
    kE5m2,
    kE3m4,
    kE8m0,
    kE2m1,
    kE2m3,
    kE3m2,
};
inline constexpr uint32_t kSplits = 12;

// From the highest bit of a word on: sign, exponent, mantissa.
struct SplitBits {
    uint32_t sign;
    uint32_t exponent;
    uint32_t mantissa;
};

static constexpr SplitBits split_bits(Split split) noexcept {
    switch (split) {
        case Split::kBf16: return {1, 8, 7};
        case Split::kFp16: return {1, 5, 10};
        case Split::kFp32: return {1, 8, 23};
        case Split::kFp64: return {1, 11, 52};
        case Split::kE4m3: return {1, 4, 3};
        case Split::kE5m2: return {1, 5, 2};
        case Split::kE3m4: return {1, 3, 4};
        case Split::kE8m0: return {0, 8, 0};
        case Split::kE2m1: return {1, 2, 1};
        case Split::kE2m3: return {1, 2, 3};
        case Split::kE3m2: return {1, 3, 2};
        case Split::kNone: break;
    }
    return {0, 0, 0};
}

static constexpr uint32_t rest_bits(Split split) noexcept {
    return split_bits(split).sign + split_bits(split).mantissa;
}

// The splits that codecs 2 and 3 code.
static constexpr bool is_modelled(Split split) noexcept {
    return split == Split::kBf16 || split == Split::kFp16 || split == Split::kFp32;
}

// Exponents go from 0 to this.
static constexpr uint32_t max_exponent(Split split) noexcept {
    return (1u << split_bits(split).exponent) - 1;
}

// Bytes of an exponent in the escape stream.
static constexpr uint32_t escape_bytes(Split split) noexcept {
    return split_bits(split).exponent > 8 ? 2 : 1;
}

// The planes that the fields of a rest are written as, in order: each holds 16, 8 or 1 bits of
// every word, from the top of the rest down.
struct FieldPlanes {
    static constexpr uint32_t kMost = 12;
    uint32_t n = 0;
    uint8_t bits[kMost] = {};
};

static constexpr FieldPlanes field_planes(uint32_t rest_bits) noexcept {
    FieldPlanes planes;
    uint32_t left = rest_bits;
    const auto take = [&](uint32_t bits) {
        planes.bits[planes.n++] = static_cast<uint8_t>(bits);
        left -= bits;
    };
    if (left >= 8) {
        take(8);
    }
    while (left >= 16) {
        take(16);
    }
    if (left >= 8) {
        take(8);
    }
    while (left > 0) {
        take(1);
    }
    return planes;
}

static constexpr size_t plane_bytes(uint32_t bits, size_t m) noexcept { return (m * bits + 7) / 8; }

// Bytes of the fields of m words.
static constexpr size_t fields_bytes(uint32_t rest_bits, size_t m) noexcept {
    const FieldPlanes planes = field_planes(rest_bits);
    size_t n_bytes = 0;
    for (uint32_t p = 0; p < planes.n; ++p) {
        n_bytes += plane_bytes(planes.bits[p], m);
    }
    return n_bytes;
}

}  // namespace ogds
