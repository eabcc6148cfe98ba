#include "rest_planes.h"

#include "byte_bits.h"
#include "bytes.h"

namespace ogds {
namespace {

constexpr uint64_t kTopBits = 0x8080808080808080u;

// The bitmap of bit `bit` of m bytes.
void write_bitmap(const uint8_t* bytes, uint32_t m, uint32_t bit, uint8_t* bitmap) noexcept {
    uint32_t i = 0;
    for (; i + 8 <= m; i += 8) {
        bitmap[i / 8] = gathered(load_u64le(bytes + i) >> bit);
    }
    if (i < m) {
        bitmap[i / 8] = gathered(load_partial_u64le(bytes + i, m - i) >> bit);
    }
}

// The low bytes of `n` 16-bit integers after a shift to the right.
void narrow(const uint8_t* integers, uint32_t n, uint32_t shift, uint8_t* bytes) noexcept {
    for (uint32_t i = 0; i < n; ++i) {
        bytes[i] = static_cast<uint8_t>(load_u16le(integers + 2 * i) >> shift);
    }
}

}  // namespace

bool fill_sign_slot(const uint8_t* bitmap, uint32_t m, uint8_t* bytes) noexcept {
    uint64_t signs = 0;
    uint32_t i = 0;
    for (; i + 8 <= m; i += 8) {
        const uint64_t eight = load_u64le(bytes + i);
        signs |= eight;
        store_u64le(bytes + i, eight | kSpread[bitmap[i / 8]] << 7);
    }
    if (i < m) {
        const uint64_t rest = load_partial_u64le(bytes + i, m - i);
        signs |= rest;
        store_partial_u64le(bytes + i, m - i, rest | kSpread[bitmap[i / 8]] << 7);
    }
    return (signs & kTopBits) == 0;
}

void read_sign_slot(const uint8_t* bytes, uint32_t m, uint8_t* bitmap) noexcept {
    write_bitmap(bytes, m, 7, bitmap);
}

void predict_row(const uint8_t* of_column, uint32_t n, uint8_t of_row, uint8_t mask,
                 uint8_t* predicted) noexcept {
    for (uint32_t k = 0; k < n; ++k) {
        predicted[k] = static_cast<uint8_t>(of_row + of_column[k]) & mask;
    }
}

void write_trimmed(const uint8_t* integers, uint32_t m, uint32_t z, uint8_t* scratch,
                   uint8_t* field) noexcept {
    uint32_t n_bitmaps = 16 - z;
    if (z <= 8) {
        narrow(integers, m, 8, field);
        field += m;
        n_bitmaps -= 8;
    }
    narrow(integers, m, z, scratch);
    for (uint32_t bit = n_bitmaps; bit-- > 0; field += (m + 7) / 8) {
        write_bitmap(scratch, m, bit, field);
    }
}

void read_trimmed(const uint8_t* field, uint32_t m, uint32_t z, uint8_t* scratch,
                  uint8_t* integers) noexcept {
    const uint8_t* bytes = field;
    uint32_t n_bitmaps = 16 - z;
    if (z <= 8) {
        field += m;
        n_bitmaps -= 8;
    }
    const size_t bitmap_bytes = (size_t{m} + 7) / 8;
    for (size_t g = 0; g < bitmap_bytes; ++g) {
        uint64_t eight = 0;
        for (uint32_t b = 0; b < n_bitmaps; ++b) {
            eight = eight << 1 | kSpread[field[b * bitmap_bytes + g]];
        }
        store_u64le(scratch + 8 * g, eight);
    }
    for (uint32_t i = 0; i < m; ++i) {
        const uint32_t top = z <= 8 ? uint32_t{bytes[i]} << 8 : 0;
        store_u16le(integers + 2 * i, static_cast<uint16_t>(top | uint32_t{scratch[i]} << z));
    }
}

}  // namespace ogds
