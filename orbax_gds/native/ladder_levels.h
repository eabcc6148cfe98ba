// The levels of the ladder 64 values at a time: the bits of the values that a level cannot hold are
// extracted from the planes and handed on; in decoding they are deposited where they belong.
//
// `Bits` says how: bits_bmi2.h or bits_portable.h. Include only from files of one instruction set.
// Everything here is in an unnamed namespace: the linker must not merge it with a copy that other
// files were given by other instruction sets.
#pragma once

#include "bit_group.h"
#include "bytes.h"
#include "ladder_kernels.h"

namespace ogds {
namespace {

// Which values a level of width w passes on: those not below 2^w - 1.
template <uint32_t kWidth>
inline uint64_t passed_on(const Group& v) noexcept {
    if constexpr (kWidth == 1) {
        return v.b0 | v.b1 | v.b2 | v.b3;
    } else {
        return v.b2 | v.b3 | (v.b0 & v.b1);
    }
}

// v - (2^w - 1), a subtraction with borrow in bit-sliced form (for w = 2: v + 13).
template <uint32_t kWidth>
inline Group lowered(const Group& v) noexcept {
    if constexpr (kWidth == 1) {
        const uint64_t borrow1 = ~v.b0 & ~v.b1;
        const uint64_t borrow2 = borrow1 & ~v.b2;
        return {~v.b0, ~(v.b0 ^ v.b1), v.b2 ^ borrow1, v.b3 ^ borrow2};
    } else {
        const uint64_t carry1 = v.b0 & v.b1;
        const uint64_t carry2 = v.b2 | carry1;
        return {~v.b0, v.b0 ^ v.b1, ~(v.b2 ^ carry1), ~(v.b3 ^ carry2)};
    }
}

// written + handed, where handed is 0 unless written is 2^w - 1. `overflow` collects sums > 15.
template <uint32_t kWidth>
inline Group raised(uint64_t written0, uint64_t written1, const Group& handed,
                    uint64_t& overflow) noexcept {
    Group v;
    v.b0 = written0 ^ handed.b0;
    uint64_t carry = handed.b0;
    if constexpr (kWidth == 1) {
        v.b1 = handed.b1 ^ carry;
        carry &= handed.b1;
    } else {
        v.b1 = written1 ^ handed.b1 ^ carry;
        carry |= handed.b1;
    }
    v.b2 = handed.b2 ^ carry;
    carry &= handed.b2;
    v.b3 = handed.b3 ^ carry;
    overflow |= carry & handed.b3;
    return v;
}

constexpr size_t kPlaneBytes = sizeof(RankPlanes::bit[0]);

// Appends bits to four planes at once, of which nothing is there.
template <class Bits>
class PlaneWriter {
public:
    explicit PlaneWriter(RankPlanes& planes) noexcept
        : start_(reinterpret_cast<uint8_t*>(&planes)) {
        for (auto& plane : planes.bit) {
            plane[0] = 0;
        }
    }

    void append(const Group& v, uint64_t taken) noexcept {
        const Group bits = Bits::extract(v, taken);
        uint8_t* const last = start_ + (n_bits_ / 8 & ~7u);
        const uint64_t power = uint64_t{1} << n_bits_ % 64;
        append_bits(bits.b0, power, last);
        append_bits(bits.b1, power, last + kPlaneBytes);
        append_bits(bits.b2, power, last + 2 * kPlaneBytes);
        append_bits(bits.b3, power, last + 3 * kPlaneBytes);
        n_bits_ += static_cast<uint32_t>(__builtin_popcountll(taken));
    }

    uint32_t n_values() const noexcept { return n_bits_; }

private:
    uint8_t* start_;
    uint32_t n_bits_ = 0;
};

// Takes bits from four planes at once, at any bit position.
template <class Bits>
class PlaneReader {
public:
    explicit PlaneReader(const RankPlanes& planes) noexcept
        : at_(reinterpret_cast<const uint8_t*>(&planes)) {}

    Group take(uint64_t wanted) noexcept {
        const uint8_t* const at = at_ + n_bits_ / 8;
        const size_t skip = n_bits_ % 8;
        const auto n = static_cast<size_t>(__builtin_popcountll(wanted));
        n_bits_ += n;
        Group v = {load_u64le(at) >> skip, load_u64le(at + kPlaneBytes) >> skip,
                   load_u64le(at + 2 * kPlaneBytes) >> skip,
                   load_u64le(at + 3 * kPlaneBytes) >> skip};
        if (__builtin_expect(n + skip > 64, 0)) {
            v.b0 |= ninth(at, skip);
            v.b1 |= ninth(at + kPlaneBytes, skip);
            v.b2 |= ninth(at + 2 * kPlaneBytes, skip);
            v.b3 |= ninth(at + 3 * kPlaneBytes, skip);
        }
        return Bits::deposit(v, wanted);
    }

    size_t n_values() const noexcept { return n_bits_; }

private:
    static uint64_t ninth(const uint8_t* at, size_t skip) noexcept {
        return uint64_t{at[8]} << (64 - skip);
    }

    const uint8_t* at_;
    size_t n_bits_ = 0;
};

// Writes a group's bitmaps by write(b, bitmap), which comes first so that they need no registers
// later, and hands on what is left.
template <class Bits, uint32_t kWidth, class Write>
inline void encode_group(const RankPlanes& values, uint32_t g, uint64_t valid, Write write,
                         PlaneWriter<Bits>& next) noexcept {
    const Group v = {values.bit[0][g], values.bit[1][g], values.bit[2][g], values.bit[3][g]};
    const uint64_t passed = passed_on<kWidth>(v) & valid;
    write(0, (kWidth == 1 ? passed : v.b0 | passed) & valid);
    if constexpr (kWidth == 2) {
        write(1, (v.b1 | passed) & valid);
    }
    next.append(lowered<kWidth>(v), passed);
}

template <class Bits, uint32_t kWidth>
uint32_t encode_narrow_level(const RankPlanes& values, uint32_t n, uint8_t* out,
                             RankPlanes& next) noexcept {
    const size_t bitmap_bytes = level_bytes(1, n);
    PlaneWriter<Bits> writer(next);
    uint32_t g = 0;
    for (; g < n / 64; ++g, out += 8) {
        const auto write = [&](uint32_t b, uint64_t bitmap) {
            store_u64le(out + b * bitmap_bytes, bitmap);
        };
        encode_group<Bits, kWidth>(values, g, ~uint64_t{0}, write, writer);
    }
    if (n % 64 != 0) {
        const auto write = [&](uint32_t b, uint64_t bitmap) {
            store_partial_u64le(out + b * bitmap_bytes, bitmap_bytes - 8 * g, bitmap);
        };
        encode_group<Bits, kWidth>(values, g, low_bits(n % 64), write, writer);
    }
    return writer.n_values();
}

void encode_last_level(const RankPlanes& values, uint32_t n, uint8_t* out) noexcept {
    const size_t bitmap_bytes = level_bytes(1, n);
    for (uint32_t b = 0; b < 4; ++b, out += bitmap_bytes) {
        __builtin_memcpy(out, values.bit[b], n / 64 * 8);
        if (n % 64 != 0) {
            store_partial_u64le(out + n / 64 * 8, bitmap_bytes - n / 64 * 8,
                                values.bit[b][n / 64] & low_bits(n % 64));
        }
    }
}

template <class Bits, uint32_t kWidth>
inline void decode_group(const uint64_t bitmaps[2], uint32_t g, uint64_t& overflow,
                         PlaneReader<Bits>& next, RankPlanes& values) noexcept {
    const uint64_t passed = kWidth == 1 ? bitmaps[0] : bitmaps[0] & bitmaps[1];
    const Group v = raised<kWidth>(bitmaps[0], bitmaps[1], next.take(passed), overflow);
    values.bit[0][g] = v.b0;
    values.bit[1][g] = v.b1;
    values.bit[2][g] = v.b2;
    values.bit[3][g] = v.b3;
}

template <class Bits, uint32_t kWidth>
LevelResult decode_narrow_level(const uint8_t* in, uint32_t n, const RankPlanes& next,
                                uint32_t n_next, RankPlanes& values) noexcept {
    const size_t bitmap_bytes = level_bytes(1, n);
    PlaneReader<Bits> reader(next);
    uint64_t overflow = 0;
    uint64_t bitmaps[2] = {0, 0};
    uint32_t g = 0;
    for (; g < n / 64; ++g) {
        for (uint32_t b = 0; b < kWidth; ++b) {
            bitmaps[b] = load_u64le(in + b * bitmap_bytes + 8 * g);
        }
        decode_group<Bits, kWidth>(bitmaps, g, overflow, reader, values);
    }
    if (n % 64 != 0) {
        for (uint32_t b = 0; b < kWidth; ++b) {
            bitmaps[b] = load_partial_u64le(in + b * bitmap_bytes + 8 * g, bitmap_bytes - 8 * g) &
                         low_bits(n % 64);
        }
        decode_group<Bits, kWidth>(bitmaps, g, overflow, reader, values);
    }
    if (reader.n_values() != n_next) {
        return LevelResult::kCountDiffers;
    }
    return overflow == 0 ? LevelResult::kOk : LevelResult::kRankTooLarge;
}

void decode_last_level(const uint8_t* in, uint32_t n, RankPlanes& values) noexcept {
    const size_t bitmap_bytes = level_bytes(1, n);
    for (uint32_t b = 0; b < 4; ++b, in += bitmap_bytes) {
        __builtin_memcpy(values.bit[b], in, bitmap_bytes);
    }
}

template <class Bits>
uint32_t encode_level(uint32_t width, const RankPlanes& values, uint32_t n, uint8_t* out,
                      RankPlanes& next) noexcept {
    switch (width) {
        case 1: return encode_narrow_level<Bits, 1>(values, n, out, next);
        case 2: return encode_narrow_level<Bits, 2>(values, n, out, next);
        default: encode_last_level(values, n, out); return 0;
    }
}

template <class Bits>
LevelResult decode_level(uint32_t width, const uint8_t* in, uint32_t n, const RankPlanes& next,
                         uint32_t n_next, RankPlanes& values) noexcept {
    switch (width) {
        case 1: return decode_narrow_level<Bits, 1>(in, n, next, n_next, values);
        case 2: return decode_narrow_level<Bits, 2>(in, n, next, n_next, values);
        default: decode_last_level(in, n, values); return LevelResult::kOk;
    }
}

}  // namespace
}  // namespace ogds
