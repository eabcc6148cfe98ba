// Cursors over the payload of a frame that keep its CRC32C on the way: bytes are checksummed in
// steps, while they are still in the cache.
#pragma once

#include <cassert>
#include <cstring>
#include <span>

#include "isa.h"

namespace ogds {

// Appends to a caller's buffer, never past `limit`. A copy is a point to go back to.
class PayloadWriter {
public:
    explicit PayloadWriter(std::span<uint8_t> out) noexcept : out_(out), limit_(out.size()) {}

    // The next n bytes, or nullptr if there is no room for them.
    uint8_t* reserve(size_t n) noexcept {
        if (n > limit_ - at_) {
            return nullptr;
        }
        uint8_t* bytes = out_.data() + at_;
        at_ += n;
        return bytes;
    }

    // The last n bytes reserved, not checksummed yet, were not needed.
    void give_back(size_t n) noexcept {
        assert(n <= at_ - summed_);
        at_ -= n;
    }

    size_t room() const noexcept { return limit_ - at_; }

    // At most n bytes in all may follow from here.
    void limit_rest(size_t n) noexcept {
        if (n < limit_ - at_) {
            limit_ = at_ + n;
        }
    }

    // Everything reserved so far is final.
    void checksum() noexcept {
        crc_ = kernels().crc32c(out_.data() + summed_, at_ - summed_, crc_);
        summed_ = at_;
    }

    // Appends a copy of n bytes; everything reserved so far is final. False, and nothing appended,
    // if there is no room for them. They must not change meanwhile.
    bool append(const uint8_t* bytes, size_t n) noexcept {
        checksum();
        uint8_t* to = reserve(n);
        if (to == nullptr) {
            return false;
        }
        crc_ = kernels().crc32c_copy(to, bytes, n, crc_);
        summed_ = at_;
        return true;
    }

    size_t size() const noexcept { return at_; }
    uint32_t crc() const noexcept { return crc_; }

private:
    std::span<uint8_t> out_;
    size_t limit_;
    size_t at_ = 0;
    size_t summed_ = 0;
    uint32_t crc_ = 0;
};

class PayloadReader {
public:
    explicit PayloadReader(std::span<const uint8_t> bytes) noexcept : bytes_(bytes) {}

    // The next n bytes, or nullptr if fewer are left.
    const uint8_t* take(size_t n) noexcept {
        if (n > bytes_.size() - at_) {
            return nullptr;
        }
        const uint8_t* bytes = bytes_.data() + at_;
        at_ += n;
        return bytes;
    }

    void checksum() noexcept {
        crc_ = kernels().crc32c(bytes_.data() + summed_, at_ - summed_, crc_);
        summed_ = at_;
    }

    // How many bytes are taken.
    size_t taken() const noexcept { return at_; }

    // Takes the rest and returns the CRC32C of all bytes.
    uint32_t finish() noexcept {
        at_ = bytes_.size();
        checksum();
        return crc_;
    }

    size_t left() const noexcept { return bytes_.size() - at_; }

private:
    std::span<const uint8_t> bytes_;
    size_t at_ = 0;
    size_t summed_ = 0;
    uint32_t crc_ = 0;
};

}  // namespace ogds
