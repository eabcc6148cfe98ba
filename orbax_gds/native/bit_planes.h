// Bytes to bit planes and back, for 128 words a lane of a register: FORMAT's bitmaps.
//
// The bytes of a group of words lie in eight registers, the parts: part q has words 16 q to
// 16 q + 15 of each lane's 128. A plane is one register: bit i of a lane is a bit of its word i.
// Between the two forms lies a transposition of 8 x 8 bits, done across the eight registers, and a
// sorting of bytes by zips.
//
// Include only from files of one instruction set, with its V (vector_*.h).
#pragma once

#include <cstdint>

// Parts and planes are to stay in registers: a call would take them through memory.
#define OGDS_IN_REGISTERS __attribute__((always_inline)) inline

namespace ogds {
namespace {

// Swaps the upper of two neighbouring runs of kBits bits in `a` with the lower in `b`.
template <class V, int kBits>
OGDS_IN_REGISTERS void swap_bits(typename V::T& a, typename V::T& b) noexcept {
    const auto mask = V::splat(kBits == 1 ? 0x55 : kBits == 2 ? 0x33 : 0x0F);
    const auto different = V::and_(V::xor_(V::template right16<kBits>(a), b), mask);
    b = V::xor_(b, different);
    a = V::xor_(a, V::template left16<kBits>(different));
}

// Register k, bit b becomes register b, bit k, in each byte; with four registers in each half.
template <class V>
OGDS_IN_REGISTERS void transpose_bits(typename V::T (&v)[4]) noexcept {
    swap_bits<V, 1>(v[0], v[1]);
    swap_bits<V, 1>(v[2], v[3]);
    swap_bits<V, 2>(v[0], v[2]);
    swap_bits<V, 2>(v[1], v[3]);
}

template <class V>
OGDS_IN_REGISTERS void transpose_bits(typename V::T (&v)[8]) noexcept {
    for (int k = 0; k < 8; k += 2) {
        swap_bits<V, 1>(v[k], v[k + 1]);
    }
    for (int k = 0; k < 8; k += 4) {
        swap_bits<V, 2>(v[k], v[k + 2]);
        swap_bits<V, 2>(v[k + 1], v[k + 3]);
    }
    for (int k = 0; k < 4; ++k) {
        swap_bits<V, 4>(v[k], v[k + 4]);
    }
}

// One round of zips turns the number (register, place) of a unit by one bit to the left.
template <class V, int kN>
OGDS_IN_REGISTERS void turn8(typename V::T (&v)[kN]) noexcept {
    typename V::T next[kN];
    for (int i = 0; i < kN / 2; ++i) {
        next[2 * i] = V::zip_low8(v[i], v[i + kN / 2]);
        next[2 * i + 1] = V::zip_high8(v[i], v[i + kN / 2]);
    }
    for (int i = 0; i < kN; ++i) {
        v[i] = next[i];
    }
}

template <class V, int kN>
OGDS_IN_REGISTERS void turn16(typename V::T (&v)[kN]) noexcept {
    typename V::T next[kN];
    for (int i = 0; i < kN / 2; ++i) {
        next[2 * i] = V::zip_low16(v[i], v[i + kN / 2]);
        next[2 * i + 1] = V::zip_high16(v[i], v[i + kN / 2]);
    }
    for (int i = 0; i < kN; ++i) {
        v[i] = next[i];
    }
}

template <class V, int kN>
OGDS_IN_REGISTERS void turn32(typename V::T (&v)[kN]) noexcept {
    typename V::T next[kN];
    for (int i = 0; i < kN / 2; ++i) {
        next[2 * i] = V::zip_low32(v[i], v[i + kN / 2]);
        next[2 * i + 1] = V::zip_high32(v[i], v[i + kN / 2]);
    }
    for (int i = 0; i < kN; ++i) {
        v[i] = next[i];
    }
}

alignas(16) constexpr uint8_t kPairsOfBytes[16] = {0, 8,  1, 9,  2, 10, 3, 11,
                                                   4, 12, 5, 13, 6, 14, 7, 15};
alignas(16) constexpr uint8_t kColumnsOfBytes[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                     2, 6, 10, 14, 3, 7, 11, 15};

// Parts of bytes to the eight planes of their bits.
template <class V>
OGDS_IN_REGISTERS void to_planes(typename V::T (&v)[8]) noexcept {
    const auto pairs = V::table(kPairsOfBytes);
    for (auto& part : v) {
        part = V::lookup(part, pairs);  // of words 8 j + k, j even and odd, two bytes for each k
    }
    turn16<V, 8>(v);
    turn16<V, 8>(v);
    turn16<V, 8>(v);  // register k, byte j: word 8 j + k
    transpose_bits<V>(v);
}

template <class V>
OGDS_IN_REGISTERS void from_planes(typename V::T (&v)[8]) noexcept {
    transpose_bits<V>(v);
    turn8<V, 8>(v);
    turn8<V, 8>(v);
    turn8<V, 8>(v);
}

// Parts of bytes below 16 to four planes: two words share a byte on the way.
template <class V>
OGDS_IN_REGISTERS void to_planes4(const typename V::T (&parts)[8],
                                  typename V::T (&planes)[4]) noexcept {
    const auto columns = V::table(kColumnsOfBytes);
    for (int r = 0; r < 4; ++r) {
        const auto halves = [&](int q) {  // word k in the low, k + 4 in the high half of byte k
            return V::or_(parts[q], V::template right64<28>(parts[q]));
        };
        planes[r] = V::lookup(V::even32(halves(2 * r), halves(2 * r + 1)), columns);
    }
    turn32<V, 4>(planes);
    turn32<V, 4>(planes);  // register k, byte j: words 8 j + k and 8 j + k + 4
    transpose_bits<V>(planes);
}

template <class V>
OGDS_IN_REGISTERS void from_planes4(const typename V::T (&planes)[4],
                                    typename V::T (&parts)[8]) noexcept {
    const auto low_half = V::splat(0x0F);
    typename V::T v[4] = {planes[0], planes[1], planes[2], planes[3]};
    transpose_bits<V>(v);
    turn8<V, 4>(v);
    turn8<V, 4>(v);
    for (int r = 0; r < 4; ++r) {
        const auto low = V::and_(v[r], low_half);
        const auto high = V::and_(V::template right16<4>(v[r]), low_half);
        parts[2 * r] = V::zip_low32(low, high);
        parts[2 * r + 1] = V::zip_high32(low, high);
    }
}

}  // namespace
}  // namespace ogds
