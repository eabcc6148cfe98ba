// The dtype table of FORMAT section 5, as far as coding needs it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "bytes.h"
#include "splits.h"

namespace ogds {

struct Dtype {
    uint8_t bits = 0;  // of a word that count; 0 = no such dtype
    uint8_t container_bytes = 0;
    Split split = Split::kNone;
};

namespace detail {

constexpr std::array<Dtype, 256> make_dtypes() {
    std::array<Dtype, 256> table{};
    const auto set = [&table](std::initializer_list<uint8_t> ids, Dtype dtype) {
        for (uint8_t id : ids) {
            table[id] = dtype;
        }
    };
    set({1, 2, 3}, {8, 1, Split::kNone});
    set({4, 5}, {16, 2, Split::kNone});
    set({6, 7}, {32, 4, Split::kNone});
    set({8, 9}, {64, 8, Split::kNone});
    set({10, 11}, {4, 1, Split::kNone});
    set({12, 13}, {2, 1, Split::kNone});
    set({14, 15}, {1, 1, Split::kNone});
    set({16}, {16, 2, Split::kBf16});
    set({17}, {16, 2, Split::kFp16});
    set({18, 32}, {32, 4, Split::kFp32});
    set({19, 33}, {64, 8, Split::kFp64});
    set({20, 22, 23, 24}, {8, 1, Split::kE4m3});
    set({21, 25}, {8, 1, Split::kE5m2});
    set({26}, {8, 1, Split::kE3m4});
    set({27}, {8, 1, Split::kE8m0});
    set({28}, {4, 1, Split::kE2m1});
    set({29}, {6, 1, Split::kE2m3});
    set({30}, {6, 1, Split::kE3m2});
    return table;
}

inline constexpr std::array<Dtype, 256> kDtypes = make_dtypes();

}  // namespace detail

constexpr const Dtype& dtype_of(uint8_t id) noexcept { return detail::kDtypes[id]; }

// Bytes of n words, `bits` bits each, packed: FORMAT 7.3.
constexpr size_t raw_bytes(const Dtype& dtype, size_t n_words) noexcept {
    return (n_words * dtype.bits + 7) / 8;
}

// The bits that count, in every container of an 8-byte group.
constexpr uint64_t word_mask(const Dtype& dtype) noexcept {
    return dtype.bits >= 8 ? ~uint64_t{0} : 0x0101010101010101u * ((1u << dtype.bits) - 1);
}

}  // namespace ogds
