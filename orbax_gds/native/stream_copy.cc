#include "stream_copy.h"

#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ogds {

#if defined(__SSE2__)

namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kLeastBytes = 4096;  // chosen: below, the lines at both ends take their toll

void stream_line(uint8_t* to, const uint8_t* from) noexcept {
    __m128i parts[4];
    for (size_t i = 0; i < 4; ++i) {
        parts[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
    }
    for (size_t i = 0; i < 4; ++i) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, parts[i]);
    }
}

}  // namespace

void stream_copy(uint8_t* to, const uint8_t* from, size_t n) noexcept {
    if (n >= kLeastBytes) {
        const size_t head = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
        std::memcpy(to, from, head);
        to += head;
        from += head;
        n -= head;
        for (; n >= kLineBytes; n -= kLineBytes, to += kLineBytes, from += kLineBytes) {
            stream_line(to, from);
        }
        _mm_sfence();
    }
    std::memcpy(to, from, n);
}

#else

void stream_copy(uint8_t* to, const uint8_t* from, size_t n) noexcept { std::memcpy(to, from, n); }

#endif

}  // namespace ogds
