// 32 bytes in a register of AVX2. Include only from files compiled for it.
#pragma once

#include <immintrin.h>

#include "bytes.h"

namespace ogds {
namespace {

// What the loops of the ladder ask of a register. It is one or more lanes of 16 bytes; what an
// operation does, it does within each lane. A lane loaded or stored lies `gap` bytes after the one
// before it.
struct Avx2 {
    using T = __m256i;
    static constexpr uint32_t kBytes = 32;

    static T load(const uint8_t* at, size_t gap) noexcept {
        const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + gap));
        return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    static void store(uint8_t* at, size_t gap, T v) noexcept {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(v));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + gap), _mm256_extracti128_si256(v, 1));
    }
    static T load_whole(const uint8_t* at) noexcept {
        return _mm256_loadu_si256(reinterpret_cast<const T*>(at));
    }
    static void store_whole(uint8_t* at, T v) noexcept {
        _mm256_storeu_si256(reinterpret_cast<T*>(at), v);
    }
    // Past the caches, to a multiple of kBytes, or 16 bytes to a multiple of 16; fence() after the
    // last.
    static void stream_whole(uint8_t* at, T v) noexcept {
        _mm256_stream_si256(reinterpret_cast<T*>(at), v);
    }
    static void stream_half(uint8_t* at, const uint8_t* from) noexcept {
        _mm_stream_si128(reinterpret_cast<__m128i*>(at),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
    static void fence() noexcept { _mm_sfence(); }

    static T splat(uint32_t byte) noexcept { return _mm256_set1_epi8(static_cast<char>(byte)); }
    // The same 16 bytes in every lane.
    static T table(const uint8_t* at) noexcept {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    }
    // The byte of the lane of `table` that each byte of `index`, 0 to 15, names.
    static T lookup(T table, T index) noexcept { return _mm256_shuffle_epi8(table, index); }

    static T and_(T a, T b) noexcept { return _mm256_and_si256(a, b); }
    static T or_(T a, T b) noexcept { return _mm256_or_si256(a, b); }
    static T xor_(T a, T b) noexcept { return _mm256_xor_si256(a, b); }
    // The bits of a where the mask has ones, else those of b.
    static T select(T mask, T a, T b) noexcept {
        return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
    }
    static bool any(T v) noexcept { return _mm256_testz_si256(v, v) == 0; }

    static T add8(T a, T b) noexcept { return _mm256_add_epi8(a, b); }
    static T sub8(T a, T b) noexcept { return _mm256_sub_epi8(a, b); }
    static T min8(T a, T b) noexcept { return _mm256_min_epu8(a, b); }
    static T max8(T a, T b) noexcept { return _mm256_max_epu8(a, b); }
    // a - b, or 0 if b is more.
    static T above8(T a, T b) noexcept { return _mm256_subs_epu8(a, b); }
    // 0xFF where the bytes are equal, else 0.
    static T equal8(T a, T b) noexcept { return _mm256_cmpeq_epi8(a, b); }
    // 0xFF where the highest bit is set, else 0.
    static T negative8(T v) noexcept { return _mm256_cmpgt_epi8(_mm256_setzero_si256(), v); }

    // The highest bits of the bytes, that of the first lowest.
    static uint64_t signs(T v) noexcept {
        return static_cast<uint32_t>(_mm256_movemask_epi8(v));
    }

    template <int kBits>
    static T left16(T v) noexcept { return _mm256_slli_epi16(v, kBits); }
    template <int kBits>
    static T right16(T v) noexcept { return _mm256_srli_epi16(v, kBits); }
    template <int kBits>
    static T right64(T v) noexcept { return _mm256_srli_epi64(v, kBits); }

    // Of the units of a and then b those at even or odd places.
    static T even8(T a, T b) noexcept {
        const T mask = _mm256_set1_epi16(0xFF);
        return _mm256_packus_epi16(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    }
    static T odd8(T a, T b) noexcept {
        return _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    }
    static T even16(T a, T b) noexcept {
        const T mask = _mm256_set1_epi32(0xFFFF);
        return _mm256_packus_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    }
    static T odd16(T a, T b) noexcept {
        return _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
    }
    static T even32(T a, T b) noexcept {
        return _mm256_castps_si256(
            _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
    }

    // The units of a and then b: those at even places to a, those at odd places to b.
    static void part16(T& a, T& b) noexcept {
        const T order = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
        const T first = _mm256_shuffle_epi8(a, order);
        const T second = _mm256_shuffle_epi8(b, order);
        a = _mm256_unpacklo_epi64(first, second);
        b = _mm256_unpackhi_epi64(first, second);
    }

    // Of units of 16 bits.
    static T add16(T a, T b) noexcept { return _mm256_add_epi16(a, b); }
    static T sub16(T a, T b) noexcept { return _mm256_sub_epi16(a, b); }
    // 0xFFFF where the highest bit is set, else 0.
    static T negative16(T v) noexcept { return _mm256_srai_epi16(v, 15); }
    // Twice v, or 0xFFFF if that is more.
    static T twice16(T v) noexcept { return _mm256_adds_epu16(v, v); }
    // The upper half of the product.
    static T upper16(T a, T b) noexcept { return _mm256_mulhi_epu16(a, b); }
    // (2 a b + 2^15) div 2^16 of units below 2^15.
    static T rounded_product16(T a, T b) noexcept { return _mm256_mulhrs_epi16(a, b); }
    // The units below 0x8000 of a and then b as bytes; 255 if they are more.
    static T narrow16(T a, T b) noexcept { return _mm256_packus_epi16(a, b); }
    // a b + c of the lower or upper halves of bytes, b below 128, in 16 bits.
    static T product_low8(T a, T b, T c) noexcept {
        return _mm256_maddubs_epi16(zip_low8(a, c), zip_low8(b, splat(1)));
    }
    static T product_high8(T a, T b, T c) noexcept {
        return _mm256_maddubs_epi16(zip_high8(a, c), zip_high8(b, splat(1)));
    }

    // Of units of 32 bits.
    static T add32(T a, T b) noexcept { return _mm256_add_epi32(a, b); }
    static T sub32(T a, T b) noexcept { return _mm256_sub_epi32(a, b); }
    static T negative32(T v) noexcept { return _mm256_srai_epi32(v, 31); }
    // The units of b where those of v have the highest bit set, else those of a.
    static T by_sign32(T a, T b, T v) noexcept {
        return _mm256_castps_si256(_mm256_blendv_ps(
            _mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _mm256_castsi256_ps(v)));
    }
    template <int kBits>
    static T right32(T v) noexcept { return _mm256_srli_epi32(v, kBits); }
    // The units of a and then b as 16 bits; 0xFFFF if they are more.
    static T narrow32(T a, T b) noexcept {
        const T most = _mm256_set1_epi32(0xFFFF);
        return _mm256_packus_epi32(_mm256_min_epu32(a, most), _mm256_min_epu32(b, most));
    }
    // The same of units below 2^31.
    static T narrow31(T a, T b) noexcept { return _mm256_packus_epi32(a, b); }

    // The lower or upper halves of a and b, unit by unit in turn.
    static T zip_low8(T a, T b) noexcept { return _mm256_unpacklo_epi8(a, b); }
    static T zip_high8(T a, T b) noexcept { return _mm256_unpackhi_epi8(a, b); }
    static T zip_low16(T a, T b) noexcept { return _mm256_unpacklo_epi16(a, b); }
    static T zip_high16(T a, T b) noexcept { return _mm256_unpackhi_epi16(a, b); }
    static T zip_low32(T a, T b) noexcept { return _mm256_unpacklo_epi32(a, b); }
    static T zip_high32(T a, T b) noexcept { return _mm256_unpackhi_epi32(a, b); }
};

}  // namespace
}  // namespace ogds
