// CRC32C with the crc32 instruction, three lanes at a time to hide its latency of three cycles, and
// a fourth by carry-less multiplication, which another unit of the processor does meanwhile.
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
    for (uint32_t lane = 4; lane < 8; ++lane) {
        __builtin_prefetch(at + lane * kLaneBytes);
    }
}

inline void stream_line(uint8_t* to, const uint8_t* from) noexcept {
    for (uint32_t i = 0; i < 64; i += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    }
}

// Factors that move 128 bits over so many bytes: the lower half comes first, 8 bytes before the
// upper.
template <uint32_t kBytes>
inline __m128i fold_by() noexcept {
    constexpr uint32_t kLower = shift_by(kBytes + 8);
    constexpr uint32_t kUpper = shift_by(kBytes);
    return _mm_set_epi64x(kUpper, kLower);
}

inline __m128i folded(__m128i bits, __m128i factors) noexcept {
    return _mm_xor_si128(_mm_clmulepi64_si128(bits, factors, 0x00),
                         _mm_clmulepi64_si128(bits, factors, 0x11));
}

inline __m128i load_16(const uint8_t* at) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

// The CRC, of a start of 0, of the bytes that were folded into four times 128 bits.
inline uint64_t crc_of(const __m128i (&bits)[4]) noexcept {
    const __m128i upper = _mm_xor_si128(folded(bits[0], fold_by<48>()),
                                        folded(bits[1], fold_by<32>()));
    const __m128i all =
        _mm_xor_si128(_mm_xor_si128(upper, folded(bits[2], fold_by<16>())), bits[3]);
    const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(all));
    const auto high = static_cast<uint64_t>(_mm_extract_epi64(all, 1));
    return _mm_crc32_u64(_mm_crc32_u64(0, low), high);
}

// Consumes four lanes of kLaneBytes each per round, the first by multiplication; before it reads a
// line of each, line(at) with the first of the four.
template <uint32_t kLaneBytes, class Line>
inline uint64_t run_lanes(uint64_t crc, const uint8_t*& data, size_t& n, Line line) noexcept {
    constexpr uint32_t kShiftThree = shift_by(3 * kLaneBytes);
    constexpr uint32_t kShiftTwo = shift_by(2 * kLaneBytes);
    constexpr uint32_t kShiftOne = shift_by(kLaneBytes);
    const __m128i factors = fold_by<64>();
    for (; n >= 4 * kLaneBytes; data += 4 * kLaneBytes, n -= 4 * kLaneBytes) {
        __m128i bits[4] = {};  // folded they stay zeros
        __m128i before = _mm_cvtsi64_si128(static_cast<long long>(crc));
        crc = 0;
        uint64_t second = 0;
        uint64_t third = 0;
        for (uint32_t i = 0; i < kLaneBytes; i += 64) {
            line(data + i);
            for (uint32_t k = 0; k < 4; ++k) {
                bits[k] = _mm_xor_si128(folded(bits[k], factors), load_16(data + i + 16 * k));
            }
            bits[0] = _mm_xor_si128(bits[0], before);
            before = _mm_setzero_si128();
            for (uint32_t k = i; k < i + 64; k += 8) {
                crc = _mm_crc32_u64(crc, load_u64le(data + kLaneBytes + k));
                second = _mm_crc32_u64(second, load_u64le(data + 2 * kLaneBytes + k));
                third = _mm_crc32_u64(third, load_u64le(data + 3 * kLaneBytes + k));
            }
        }
        const __m128i moved = _mm_xor_si128(
            _mm_xor_si128(multiply(crc_of(bits), kShiftThree), multiply(crc, kShiftTwo)),
            multiply(second, kShiftOne));
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
            for (uint32_t lane = 0; lane < 4; ++lane) {
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
