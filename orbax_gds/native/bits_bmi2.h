// Extraction and deposit of bits by instructions (pext, pdep). Include only from files compiled for
// BMI2.
#pragma once

#include <immintrin.h>

#include "bit_group.h"

namespace ogds {
namespace {

struct BitsBmi2 {
    // The bits of each plane where `mask` has ones, moved together at the low end.
    static Group extract(const Group& v, uint64_t mask) noexcept {
        return {_pext_u64(v.b0, mask), _pext_u64(v.b1, mask), _pext_u64(v.b2, mask),
                _pext_u64(v.b3, mask)};
    }

    // Inverse: the low bits of each plane go where `mask` has ones; the other bits are 0.
    static Group deposit(const Group& v, uint64_t mask) noexcept {
        return {_pdep_u64(v.b0, mask), _pdep_u64(v.b1, mask), _pdep_u64(v.b2, mask),
                _pdep_u64(v.b3, mask)};
    }
};

}  // namespace
}  // namespace ogds
