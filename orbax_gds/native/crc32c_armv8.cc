// CRC32C with the instructions of the Armv8 CRC extension.
#include <arm_acle.h>

#include "bytes.h"
#include "crc32c.h"

namespace ogds {

uint32_t crc32c_armv8(const uint8_t* data, size_t n, uint32_t value) noexcept {
    uint32_t crc = ~value;
    for (; n >= 8; data += 8, n -= 8) {
        crc = __crc32cd(crc, load_u64le(data));
    }
    for (; n > 0; ++data, --n) {
        crc = __crc32cb(crc, *data);
    }
    return ~crc;
}

uint32_t crc32c_copy_armv8(uint8_t* to, const uint8_t* from, size_t n, uint32_t value) noexcept {
    __builtin_memcpy(to, from, n);
    return crc32c_armv8(from, n, value);
}

}  // namespace ogds
