// CRC32C (Castagnoli): FORMAT section 1. `value` is the CRC of the bytes before, 0 at the start.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ogds {

inline constexpr uint32_t kCrc32cPolynomial = 0x82F63B78;  // 0x1EDC6F41 reflected

using Crc32cFn = uint32_t (*)(const uint8_t* data, size_t n, uint32_t value) noexcept;

uint32_t crc32c_table(const uint8_t* data, size_t n, uint32_t value) noexcept;
uint32_t crc32c_sse42(const uint8_t* data, size_t n, uint32_t value) noexcept;
uint32_t crc32c_armv8(const uint8_t* data, size_t n, uint32_t value) noexcept;

// Copies past the caches, where the machine can, and checksums what it copies, which must not
// change meanwhile.
using Crc32cCopyFn = uint32_t (*)(uint8_t* to, const uint8_t* from, size_t n,
                                  uint32_t value) noexcept;

uint32_t crc32c_copy_table(uint8_t* to, const uint8_t* from, size_t n, uint32_t value) noexcept;
uint32_t crc32c_copy_sse42(uint8_t* to, const uint8_t* from, size_t n, uint32_t value) noexcept;
uint32_t crc32c_copy_armv8(uint8_t* to, const uint8_t* from, size_t n, uint32_t value) noexcept;

}  // namespace ogds
