// 16 bytes in a register of SSE 4.1: one lane. Include only from files compiled for it.
#pragma once

#include <smmintrin.h>

#include "bytes.h"

namespace ogds {
namespace {

// What the functions do is said in vector_avx2.h.
struct Sse42 {
    using T = __m128i;
    static constexpr uint32_t kBytes = 16;

    static T load(const uint8_t* at, size_t) noexcept { return load_whole(at); }
    static void store(uint8_t* at, size_t, T v) noexcept { store_whole(at, v); }
    static T load_whole(const uint8_t* at) noexcept {
        return _mm_loadu_si128(reinterpret_cast<const T*>(at));
    }
    static void store_whole(uint8_t* at, T v) noexcept {
        _mm_storeu_si128(reinterpret_cast<T*>(at), v);
    }
    static void stream_whole(uint8_t* at, T v) noexcept {
        _mm_stream_si128(reinterpret_cast<T*>(at), v);
    }
    static void fence() noexcept { _mm_sfence(); }

    static T splat(uint32_t byte) noexcept { return _mm_set1_epi8(static_cast<char>(byte)); }
    static T table(const uint8_t* at) noexcept { return load_whole(at); }
    static T lookup(T table, T index) noexcept { return _mm_shuffle_epi8(table, index); }

    static T and_(T a, T b) noexcept { return _mm_and_si128(a, b); }
    static T or_(T a, T b) noexcept { return _mm_or_si128(a, b); }
    static T xor_(T a, T b) noexcept { return _mm_xor_si128(a, b); }
    static T select(T mask, T a, T b) noexcept {
        return _mm_or_si128(_mm_and_si128(mask, a), _mm_andnot_si128(mask, b));
    }
    static bool any(T v) noexcept { return _mm_testz_si128(v, v) == 0; }

    static T add8(T a, T b) noexcept { return _mm_add_epi8(a, b); }
    static T sub8(T a, T b) noexcept { return _mm_sub_epi8(a, b); }
    static T min8(T a, T b) noexcept { return _mm_min_epu8(a, b); }
    static T max8(T a, T b) noexcept { return _mm_max_epu8(a, b); }
    static T above8(T a, T b) noexcept { return _mm_subs_epu8(a, b); }
    static T equal8(T a, T b) noexcept { return _mm_cmpeq_epi8(a, b); }
    static T negative8(T v) noexcept { return _mm_cmpgt_epi8(_mm_setzero_si128(), v); }

    static uint64_t signs(T v) noexcept { return static_cast<uint32_t>(_mm_movemask_epi8(v)); }

    template <int kBits>
    static T left16(T v) noexcept { return _mm_slli_epi16(v, kBits); }
    template <int kBits>
    static T right16(T v) noexcept { return _mm_srli_epi16(v, kBits); }
    template <int kBits>
    static T right64(T v) noexcept { return _mm_srli_epi64(v, kBits); }

    static T even8(T a, T b) noexcept {
        const T mask = _mm_set1_epi16(0xFF);
        return _mm_packus_epi16(_mm_and_si128(a, mask), _mm_and_si128(b, mask));
    }
    static T odd8(T a, T b) noexcept {
        return _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    }
    static T even16(T a, T b) noexcept {
        const T mask = _mm_set1_epi32(0xFFFF);
        return _mm_packus_epi32(_mm_and_si128(a, mask), _mm_and_si128(b, mask));
    }
    static T odd16(T a, T b) noexcept {
        return _mm_packus_epi32(_mm_srli_epi32(a, 16), _mm_srli_epi32(b, 16));
    }
    static T even32(T a, T b) noexcept {
        return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0x88));
    }

    static void part16(T& a, T& b) noexcept {
        const T order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        const T first = _mm_shuffle_epi8(a, order);
        const T second = _mm_shuffle_epi8(b, order);
        a = _mm_unpacklo_epi64(first, second);
        b = _mm_unpackhi_epi64(first, second);
    }

    static T add16(T a, T b) noexcept { return _mm_add_epi16(a, b); }
    static T sub16(T a, T b) noexcept { return _mm_sub_epi16(a, b); }
    static T negative16(T v) noexcept { return _mm_srai_epi16(v, 15); }
    static T twice16(T v) noexcept { return _mm_adds_epu16(v, v); }
    static T upper16(T a, T b) noexcept { return _mm_mulhi_epu16(a, b); }
    static T rounded_product16(T a, T b) noexcept { return _mm_mulhrs_epi16(a, b); }
    static T narrow16(T a, T b) noexcept { return _mm_packus_epi16(a, b); }
    static T product_low8(T a, T b, T c) noexcept {
        return _mm_maddubs_epi16(zip_low8(a, c), zip_low8(b, splat(1)));
    }
    static T product_high8(T a, T b, T c) noexcept {
        return _mm_maddubs_epi16(zip_high8(a, c), zip_high8(b, splat(1)));
    }

    static T add32(T a, T b) noexcept { return _mm_add_epi32(a, b); }
    static T sub32(T a, T b) noexcept { return _mm_sub_epi32(a, b); }
    static T negative32(T v) noexcept { return _mm_srai_epi32(v, 31); }
    static T by_sign32(T a, T b, T v) noexcept {
        return _mm_castps_si128(
            _mm_blendv_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), _mm_castsi128_ps(v)));
    }
    template <int kBits>
    static T right32(T v) noexcept { return _mm_srli_epi32(v, kBits); }
    static T narrow32(T a, T b) noexcept {
        const T most = _mm_set1_epi32(0xFFFF);
        return _mm_packus_epi32(_mm_min_epu32(a, most), _mm_min_epu32(b, most));
    }
    static T narrow31(T a, T b) noexcept { return _mm_packus_epi32(a, b); }

    static T zip_low8(T a, T b) noexcept { return _mm_unpacklo_epi8(a, b); }
    static T zip_high8(T a, T b) noexcept { return _mm_unpackhi_epi8(a, b); }
    static T zip_low16(T a, T b) noexcept { return _mm_unpacklo_epi16(a, b); }
    static T zip_high16(T a, T b) noexcept { return _mm_unpackhi_epi16(a, b); }
    static T zip_low32(T a, T b) noexcept { return _mm_unpacklo_epi32(a, b); }
    static T zip_high32(T a, T b) noexcept { return _mm_unpackhi_epi32(a, b); }
};

}  // namespace
}  // namespace ogds
