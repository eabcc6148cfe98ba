// Unaligned little-endian loads and stores.
//
// Everything here is `static inline`: these functions are compiled into files built for different
// instruction sets, and the linker must never merge the copies.
#pragma once

#include <cstddef>
#include <cstdint>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "orbax_gds needs a little-endian machine");
static_assert(sizeof(size_t) == 8, "orbax_gds needs a 64-bit machine");

namespace ogds {

static inline uint16_t load_u16le(const uint8_t* at) noexcept {
    uint16_t value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t load_u32le(const uint8_t* at) noexcept {
    uint32_t value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t load_u64le(const uint8_t* at) noexcept {
    uint64_t value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

static inline void store_u16le(uint8_t* at, uint16_t value) noexcept {
    __builtin_memcpy(at, &value, sizeof value);
}

static inline void store_u32le(uint8_t* at, uint32_t value) noexcept {
    __builtin_memcpy(at, &value, sizeof value);
}

static inline void store_u64le(uint8_t* at, uint64_t value) noexcept {
    __builtin_memcpy(at, &value, sizeof value);
}

// The first `bytes` (0 to 8) bytes as an integer; the bytes after them are not touched.
static inline uint64_t load_partial_u64le(const uint8_t* at, size_t bytes) noexcept {
    uint64_t value = 0;
    __builtin_memcpy(&value, at, bytes);
    return value;
}

static inline void store_partial_u64le(uint8_t* at, size_t bytes, uint64_t value) noexcept {
    __builtin_memcpy(at, &value, bytes);
}

static inline size_t ceil_div(size_t a, size_t b) noexcept { return (a + b - 1) / b; }

static inline size_t align_up(size_t n, size_t alignment) noexcept {
    return ceil_div(n, alignment) * alignment;
}

}  // namespace ogds
