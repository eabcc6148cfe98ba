// 16 bytes in a register of NEON: one lane. Include only from files for 64-bit Arm.
#pragma once

#include <arm_neon.h>

#include "bytes.h"

namespace ogds {
namespace {

// What the functions do is said in vector_avx2.h.
struct Neon {
    using T = uint8x16_t;
    static constexpr uint32_t kBytes = 16;

    static T load(const uint8_t* at, size_t) noexcept { return vld1q_u8(at); }
    static void store(uint8_t* at, size_t, T v) noexcept { vst1q_u8(at, v); }
    static T load_whole(const uint8_t* at) noexcept { return vld1q_u8(at); }
    static void store_whole(uint8_t* at, T v) noexcept { vst1q_u8(at, v); }
    // There is no such store.
    static void stream_whole(uint8_t* at, T v) noexcept { store_whole(at, v); }
    static void fence() noexcept {}

    static T splat(uint32_t byte) noexcept { return vdupq_n_u8(static_cast<uint8_t>(byte)); }
    static T table(const uint8_t* at) noexcept { return vld1q_u8(at); }
    static T lookup(T table, T index) noexcept { return vqtbl1q_u8(table, index); }

    static T and_(T a, T b) noexcept { return vandq_u8(a, b); }
    static T or_(T a, T b) noexcept { return vorrq_u8(a, b); }
    static T xor_(T a, T b) noexcept { return veorq_u8(a, b); }
    static T select(T mask, T a, T b) noexcept { return vbslq_u8(mask, a, b); }
    static bool any(T v) noexcept { return vmaxvq_u8(v) != 0; }

    static T add8(T a, T b) noexcept { return vaddq_u8(a, b); }
    static T sub8(T a, T b) noexcept { return vsubq_u8(a, b); }
    static T min8(T a, T b) noexcept { return vminq_u8(a, b); }
    static T max8(T a, T b) noexcept { return vmaxq_u8(a, b); }
    static T above8(T a, T b) noexcept { return vqsubq_u8(a, b); }
    static T equal8(T a, T b) noexcept { return vceqq_u8(a, b); }
    static T negative8(T v) noexcept { return vcltzq_s8(vreinterpretq_s8_u8(v)); }

    static uint64_t signs(T v) noexcept {
        alignas(16) static constexpr uint8_t kWeights[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                             1, 2, 4, 8, 16, 32, 64, 128};
        const T bits = vandq_u8(negative8(v), vld1q_u8(kWeights));
        return static_cast<uint64_t>(vaddv_u8(vget_low_u8(bits))) |
               static_cast<uint64_t>(vaddv_u8(vget_high_u8(bits))) << 8;
    }

    template <int kBits>
    static T left16(T v) noexcept {
        return vreinterpretq_u8_u16(vshlq_n_u16(vreinterpretq_u16_u8(v), kBits));
    }
    template <int kBits>
    static T right16(T v) noexcept {
        if constexpr (kBits == 0) {
            return v;  // the instruction shifts by 1 to 16
        } else {
            return vreinterpretq_u8_u16(vshrq_n_u16(vreinterpretq_u16_u8(v), kBits));
        }
    }
    template <int kBits>
    static T right64(T v) noexcept {
        return vreinterpretq_u8_u64(vshrq_n_u64(vreinterpretq_u64_u8(v), kBits));
    }

    static T even8(T a, T b) noexcept { return vuzp1q_u8(a, b); }
    static T odd8(T a, T b) noexcept { return vuzp2q_u8(a, b); }
    static T even16(T a, T b) noexcept {
        return vreinterpretq_u8_u16(vuzp1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
    }
    static T odd16(T a, T b) noexcept {
        return vreinterpretq_u8_u16(vuzp2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
    }
    static T even32(T a, T b) noexcept {
        return vreinterpretq_u8_u32(vuzp1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
    }

    static void part16(T& a, T& b) noexcept {
        const T even = even16(a, b);
        b = odd16(a, b);
        a = even;
    }

    static T add16(T a, T b) noexcept {
        return vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
    }
    static T sub16(T a, T b) noexcept {
        return vreinterpretq_u8_u16(vsubq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
    }
    static T negative16(T v) noexcept {
        return vreinterpretq_u8_u16(vcltzq_s16(vreinterpretq_s16_u8(v)));
    }
    static T twice16(T v) noexcept {
        const uint16x8_t u = vreinterpretq_u16_u8(v);
        return vreinterpretq_u8_u16(vqaddq_u16(u, u));
    }
    static T upper16(T a, T b) noexcept {
        const uint16x8_t u = vreinterpretq_u16_u8(a);
        const uint16x8_t v = vreinterpretq_u16_u8(b);
        return vreinterpretq_u8_u16(
            vuzp2q_u16(vreinterpretq_u16_u32(vmull_u16(vget_low_u16(u), vget_low_u16(v))),
                       vreinterpretq_u16_u32(vmull_high_u16(u, v))));
    }
    static T rounded_product16(T a, T b) noexcept {
        return vreinterpretq_u8_s16(
            vqrdmulhq_s16(vreinterpretq_s16_u8(a), vreinterpretq_s16_u8(b)));
    }
    static T narrow16(T a, T b) noexcept {
        return vqmovn_high_u16(vqmovn_u16(vreinterpretq_u16_u8(a)), vreinterpretq_u16_u8(b));
    }
    static T product_low8(T a, T b, T c) noexcept {
        return vreinterpretq_u8_u16(
            vaddw_u8(vmull_u8(vget_low_u8(a), vget_low_u8(b)), vget_low_u8(c)));
    }
    static T product_high8(T a, T b, T c) noexcept {
        return vreinterpretq_u8_u16(vaddw_high_u8(vmull_high_u8(a, b), c));
    }

    static T add32(T a, T b) noexcept {
        return vreinterpretq_u8_u32(vaddq_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
    }
    static T sub32(T a, T b) noexcept {
        return vreinterpretq_u8_u32(vsubq_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
    }
    static T negative32(T v) noexcept {
        return vreinterpretq_u8_u32(vcltzq_s32(vreinterpretq_s32_u8(v)));
    }
    static T by_sign32(T a, T b, T v) noexcept { return vbslq_u8(negative32(v), b, a); }
    template <int kBits>
    static T right32(T v) noexcept {
        if constexpr (kBits == 0) {
            return v;
        } else {
            return vreinterpretq_u8_u32(vshrq_n_u32(vreinterpretq_u32_u8(v), kBits));
        }
    }
    static T narrow32(T a, T b) noexcept {
        return vreinterpretq_u8_u16(
            vqmovn_high_u32(vqmovn_u32(vreinterpretq_u32_u8(a)), vreinterpretq_u32_u8(b)));
    }
    static T narrow31(T a, T b) noexcept { return narrow32(a, b); }

    static T zip_low8(T a, T b) noexcept { return vzip1q_u8(a, b); }
    static T zip_high8(T a, T b) noexcept { return vzip2q_u8(a, b); }
    static T zip_low16(T a, T b) noexcept {
        return vreinterpretq_u8_u16(vzip1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
    }
    static T zip_high16(T a, T b) noexcept {
        return vreinterpretq_u8_u16(vzip2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
    }
    static T zip_low32(T a, T b) noexcept {
        return vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
    }
    static T zip_high32(T a, T b) noexcept {
        return vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
    }
};

}  // namespace
}  // namespace ogds
