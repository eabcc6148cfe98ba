// How often the bytes of a chunk that codecs 3 and 5 code occur: enough of them to fit a code.
#pragma once

#include <algorithm>

#include "isa.h"

namespace ogds {

// Bytes are counted by pieces: the first ones, then one in eight, and each in which there is a byte
// that was not counted yet. So every byte that occurs has a count.
class ByteCounts {
public:
    void add(const uint8_t* y, uint32_t m) noexcept {
        for (uint32_t i = 0; i < m; i += kPiece) {
            const uint32_t n = std::min(kPiece, m - i);
            const bool looked_at = n_pieces_ < kFirst || n_pieces_ % kOneIn == 0;
            ++n_pieces_;
            if (looked_at || kernels().huffman->has_any(y + i, n, missing_)) {
                kernels().ans->count_bytes(y + i, n, of_);
                find_missing();
            }
        }
    }

    const uint32_t (&of() const noexcept)[kHuffmanBytes] { return of_; }

private:
    static constexpr uint32_t kPiece = 4096;
    static constexpr uint32_t kFirst = 16;
    static constexpr uint32_t kOneIn = 8;

    void find_missing() noexcept {
        missing_ = {};
        for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
            if (of_[y] == 0) {
                add_byte(missing_, y);
            }
        }
    }

    uint32_t of_[kHuffmanBytes] = {};
    uint32_t n_pieces_ = 0;
    ByteSet missing_;
};

}  // namespace ogds
