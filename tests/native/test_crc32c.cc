// CRC32C: every version is the bit-by-bit definition, for any length, start and split.
#include <algorithm>
#include <cstring>

#include "check.h"
#include "samples.h"

using namespace ogds;

namespace {

uint32_t by_definition(const uint8_t* data, size_t n) {
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < n; ++i) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0);
        }
    }
    return ~crc;
}

Bytes random_bytes(size_t n) {
    Random random(n);
    Bytes bytes(n);
    for (uint8_t& byte : bytes) {
        byte = static_cast<uint8_t>(random.next());
    }
    return bytes;
}

void equals_the_definition(size_t n) {
    const Bytes bytes = random_bytes(n);
    const uint32_t expected = by_definition(bytes.data(), n);
    const uint32_t whole = kernels().crc32c(bytes.data(), n, 0);
    CHECK(whole == expected, kernels().name, n);
    const size_t cut = n / 3;
    const uint32_t first = kernels().crc32c(bytes.data(), cut, 0);
    CHECK(kernels().crc32c(bytes.data() + cut, n - cut, first) == expected, kernels().name, n);
}

// Copying checksums the same bytes and writes these and no others.
void copies_what_it_checksums(size_t n, size_t offset) {
    const Bytes bytes = random_bytes(offset + n);
    Bytes to(n + offset + 1, 0xA5);
    const uint32_t expected = crc32c_table(bytes.data() + offset, n, 5);
    const uint32_t crc =
        kernels().crc32c_copy(to.data() + offset, bytes.data() + offset, n, 5);
    CHECK(crc == expected, kernels().name, n, offset);
    CHECK(std::memcmp(to.data() + offset, bytes.data() + offset, n) == 0, kernels().name, n);
    CHECK(std::count(to.begin(), to.begin() + static_cast<ptrdiff_t>(offset), 0xA5) ==
              static_cast<ptrdiff_t>(offset) && to.back() == 0xA5, kernels().name, n, offset);
}

}  // namespace

int main() {
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        const auto* digits = reinterpret_cast<const uint8_t*>("123456789");
        CHECK(kernels().crc32c(digits, 9, 0) == 0xE3069283, isa);  // RFC 3720
        for (size_t n = 0; n <= 1200; ++n) {
            equals_the_definition(n);
        }
        for (size_t n : {3072u, 4095u, 4096u, 4097u, 4607u, 4608u, 8192u, 10000u, 65537u}) {
            equals_the_definition(n);
        }
        for (size_t n : {1u, 63u, 4095u, 4096u, 4159u, 6200u, 8255u, 40000u}) {
            for (size_t offset : {0u, 1u, 17u, 63u}) {
                copies_what_it_checksums(n, offset);
            }
        }
    }
    CHECK(!use_kernels("no such kernels"));
}
