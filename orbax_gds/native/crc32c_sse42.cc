// CRC32C with the crc32 instruction, three lanes at a time to hide its latency of three cycles.
#include <immintrin.h>

#include "bytes.h"
#include "crc32c.h"

namespace ogds {
namespace {

// x^n mod the polynomial, bit-reflected.
constexpr uint32_t x_to_the(uint32_t n) {
    uint32_t value = 0x80000000;
    for (; n > 0; --n) {
        value = (value >> 1) ^ ((value & 1) != 0 ? kCrc32cPolynomial : 0);
    }
    return value;
}

// crc32_u64(0, clmul(crc, x^(8n - 33))) is crc moved over n bytes of zeros: the carry-less product
// of two reflected factors is one bit short of 64, and the instruction multiplies by x^32.
constexpr uint32_t shift_by(uint32_t n_bytes) { return x_to_the(8 * n_bytes - 33); }

inline __m128i multiply(uint64_t crc, uint32_t factor) noexcept {
    return _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                                _mm_cvtsi32_si128(static_cast<int>(factor)), 0);
}

constexpr uint32_t kLaneBytes = 1024;

// Asks for the bytes one round ahead: a decoder meets its input here, and what follows this call is
// what it reads next. Addresses past the end are allowed, they fetch nothing that is not mapped.
inline void prefetch_round(const uint8_t* at) noexcept {
    for (uint32_t lane = 3; lane < 6; ++lane) {
        __builtin_prefetch(at + lane * kLaneBytes);
    }
}

inline void stream_line(uint8_t* to, const uint8_t* from) noexcept {
    for (uint32_t i = 0; i < 64; i += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
}

// Consumes three lanes of kLaneBytes each per round; before it reads a line of each, line(at) with
// the first of the three.
template <uint32_t kLaneBytes, class Line>
inline uint64_t run_lanes(uint64_t crc, const uint8_t*& data, size_t& n, Line line) noexcept {
    constexpr uint32_t kShiftTwo = shift_by(2 * kLaneBytes);
    constexpr uint32_t kShiftOne = shift_by(kLaneBytes);
    for (; n >= 3 * kLaneBytes; data += 3 * kLaneBytes, n -= 3 * kLaneBytes) {
        uint64_t second = 0;
        uint64_t third = 0;
        for (uint32_t i = 0; i < kLaneBytes; i += 8) {
            if (i % 64 == 0) {
                line(data + i);
            }
            crc = _mm_crc32_u64(crc, load_u64le(data + i));
            second = _mm_crc32_u64(second, load_u64le(data + kLaneBytes + i));
            third = _mm_crc32_u64(third, load_u64le(data + 2 * kLaneBytes + i));
        }
        const __m128i moved = _mm_xor_si128(multiply(crc, kShiftTwo), multiply(second, kShiftOne));
        crc = third ^ _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(moved)));
    }
    return crc;
}

}  // namespace

uint32_t crc32c_sse42(const uint8_t* data, size_t n, uint32_t value) noexcept {
    uint64_t crc = static_cast<uint32_t>(~value);
    crc = run_lanes<kLaneBytes>(crc, data, n, prefetch_round);
    crc = run_lanes<128>(crc, data, n, [](const uint8_t*) {});
    for (; n >= 8; data += 8, n -= 8) {
        crc = _mm_crc32_u64(crc, load_u64le(data));
    }
    for (; n > 0; ++data, --n) {
        crc = _mm_crc32_u8(static_cast<uint32_t>(crc), *data);
    }
    return ~static_cast<uint32_t>(crc);
}

uint32_t crc32c_copy_sse42(uint8_t* to, const uint8_t* from, size_t n, uint32_t value) noexcept {
    if (n >= 4 * kLaneBytes) {
        const size_t head = -reinterpret_cast<uintptr_t>(to) % 64;
        __builtin_memcpy(to, from, head);
        value = crc32c_sse42(from, head, value);
        to += head;
        from += head;
        n -= head;
        // Both kinds of work go on at the same time: one waits for memory, the other does not.
        const uint8_t* data = from;
        uint64_t crc = static_cast<uint32_t>(~value);
        crc = run_lanes<kLaneBytes>(crc, data, n, [=](const uint8_t* line) {
            for (uint32_t lane = 0; lane < 3; ++lane) {
                stream_line(to + (line - from) + lane * kLaneBytes, line + lane * kLaneBytes);
            }
        });
        _mm_sfence();
        value = ~static_cast<uint32_t>(crc);
        to += data - from;
        from = data;
    }
    __builtin_memcpy(to, from, n);
    return crc32c_sse42(from, n, value);
}

}  // namespace ogds
