// The loops of codec 3 over one way to take low bits: B::low(value, n) is the low n (0 to 12) bits
// of a value, of n only the low byte counts.
//
// Include only from files of one instruction set.
#pragma once

#include "ans_kernels.h"
#include "bytes.h"

namespace ogds {
namespace {

// --- encoding ------------------------------------------------------------------------------------

// Four tables, so that equal neighbours do not wait for each other's sum.
void count_bytes(const uint8_t* y, size_t n, uint32_t* counts) noexcept {
    uint32_t tables[4][kAnsBytes] = {};
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint64_t eight = load_u64le(y + i);
#pragma GCC unroll 8
        for (uint32_t k = 0; k < 8; ++k) {
            ++tables[k % 4][(eight >> (8 * k)) & 0xFF];
        }
    }
    for (; i < n; ++i) {
        ++tables[0][y[i]];
    }
    for (uint32_t value = 0; value < kAnsBytes; ++value) {
        counts[value] +=
            tables[0][value] + tables[1][value] + tables[2][value] + tables[3][value];
    }
}

struct Bits {
    uint64_t value;
    uint32_t n;
};

// What `low` is followed by `high`, from the lowest bit on.
inline Bits join(Bits low, Bits high) noexcept {
    return {high.value << low.n | low.value, low.n + high.n};
}

// Bits at descending addresses: what is put later is read earlier.
class BitsBelow {
public:
    explicit BitsBelow(uint8_t* end) noexcept : at_(end) {}

    // At most 56 bits.
    void put(Bits bits) noexcept {
        held_ = held_ << bits.n | bits.value;  // above n_held_ lies what is written
        n_held_ += bits.n;
        store_u64le(at_ - 8, held_ << ((64 - n_held_) & 63));
        at_ -= n_held_ / 8;
        n_held_ %= 8;
    }

    // Marks the start and returns where it is.
    uint8_t* finish() noexcept {
        put({1, 1});
        if (n_held_ > 0) {
            put({0, 8 - n_held_});
        }
        return at_;
    }

private:
    uint8_t* at_;
    uint64_t held_ = 0;
    uint32_t n_held_ = 0;
};

template <class B>
inline Bits encode_byte(uint8_t y, const AnsEncodeTable& table, uint32_t& state) noexcept {
    const AnsEncodeTable::Byte& byte = table.of_byte[y];
    const uint32_t n = (state + byte.bits) >> 16;
    const Bits bits = {B::low(state, n), n};
    state = table.next[(state >> (n & 31)) + byte.first];
    return bits;
}

template <class B>
inline Bits encode_four(const uint8_t* y, const AnsEncodeTable& table, uint32_t& a, uint32_t& b,
                        uint32_t& c, uint32_t& d) noexcept {
    const Bits high = encode_byte<B>(y[3], table, d);
    const Bits third = encode_byte<B>(y[2], table, c);
    const Bits second = encode_byte<B>(y[1], table, b);
    const Bits low = encode_byte<B>(y[0], table, a);
    return join(join(low, second), join(third, high));
}

// The last byte is coded first, so that decoding begins with the first.
template <class B>
size_t encode_stream(const uint8_t* y, uint32_t m, const AnsEncodeTable& table,
                     uint8_t* end) noexcept {
    uint32_t s[kAnsLanes];
    for (uint32_t& state : s) {
        state = kAnsStates;
    }
    BitsBelow out(end);
    uint32_t i = m;
    while (i % kAnsLanes != 0) {
        --i;
        out.put(encode_byte<B>(y[i], table, s[i % kAnsLanes]));
    }
    uint32_t s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3];
    uint32_t s4 = s[4], s5 = s[5], s6 = s[6], s7 = s[7];
    for (; i > 0; i -= kAnsLanes) {
        const uint8_t* eight = y + i - kAnsLanes;
        out.put(encode_four<B>(eight + 4, table, s4, s5, s6, s7));
        out.put(encode_four<B>(eight, table, s0, s1, s2, s3));
    }
    const uint32_t first[kAnsLanes] = {s0, s1, s2, s3, s4, s5, s6, s7};
    for (uint32_t lane = kAnsLanes; lane-- > 0;) {
        out.put({first[lane] - kAnsStates, kAnsStateBits});
    }
    return static_cast<size_t>(end - out.finish());
}

// --- decoding ------------------------------------------------------------------------------------

// The bits of a stream from bit `at` on; those past the end are 0. `at` is at most at the end.
inline uint64_t bits_near_end(const uint8_t* stream, size_t n_bytes, uint64_t at) noexcept {
    const size_t left = n_bytes - at / 8;
    return load_partial_u64le(stream + at / 8, left < 8 ? left : 8) >> (at % 8);
}

template <class B>
inline void decode_byte(uint64_t& state, const AnsDecodeTable& table, uint64_t& window,
                        uint32_t& n_bits, uint8_t* y) noexcept {
    const uint64_t entry = table.of_state[state];
    *y = static_cast<uint8_t>(entry >> 8);
    state = (entry >> 16) + B::low(window, entry);
    window >>= entry & 63;
    n_bits += static_cast<uint32_t>(entry);  // the sum of four is in its low byte
}

// Four bytes take at most 48 bits, and at least 57 are in the window.
template <class B>
inline void decode_four(const uint8_t* stream, uint64_t& at, const AnsDecodeTable& table,
                        uint64_t& a, uint64_t& b, uint64_t& c, uint64_t& d, uint8_t* y) noexcept {
    uint64_t window = load_u64le(stream + at / 8) >> (at % 8);
    uint32_t n_bits = 0;
    decode_byte<B>(a, table, window, n_bits, y);
    decode_byte<B>(b, table, window, n_bits, y + 1);
    decode_byte<B>(c, table, window, n_bits, y + 2);
    decode_byte<B>(d, table, window, n_bits, y + 3);
    at += static_cast<uint8_t>(n_bits);
}

// Decodes as many groups of eight as surely are within the stream; returns their bytes.
template <class B>
uint32_t decode_eights(const uint8_t* stream, uint64_t end, const AnsDecodeTable& table,
                       uint32_t m, uint64_t& at, uint64_t (&s)[kAnsLanes], uint8_t* y) noexcept {
    constexpr uint64_t kMostBits = kAnsLanes * kAnsStateBits;
    constexpr uint64_t kMostAhead = kMostBits / 2 + 64;  // where the second window ends
    uint64_t s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3];
    uint64_t s4 = s[4], s5 = s[5], s6 = s[6], s7 = s[7];
    uint8_t* to = y;
    uint64_t position = at;
    for (uint32_t left = m / kAnsLanes; left > 0 && position + kMostAhead <= end;) {
        const uint64_t fit = (end - kMostAhead - position) / kMostBits + 1;
        const uint32_t n = left < fit ? left : static_cast<uint32_t>(fit);
        left -= n;
        for (const uint8_t* stop = to + size_t{n} * kAnsLanes; to != stop; to += kAnsLanes) {
            decode_four<B>(stream, position, table, s0, s1, s2, s3, to);
            decode_four<B>(stream, position, table, s4, s5, s6, s7, to + 4);
        }
    }
    at = position;
    const uint64_t states[kAnsLanes] = {s0, s1, s2, s3, s4, s5, s6, s7};
    for (uint32_t lane = 0; lane < kAnsLanes; ++lane) {
        s[lane] = states[lane];
    }
    return static_cast<uint32_t>(to - y);
}

template <class B>
bool decode_stream(const uint8_t* stream, size_t n_bytes, const AnsDecodeTable& table, uint32_t m,
                   uint8_t* y) noexcept {
    if (n_bytes == 0 || stream[0] == 0) {
        return false;
    }
    const uint64_t end = 8 * static_cast<uint64_t>(n_bytes);
    uint64_t at = static_cast<uint64_t>(__builtin_ctz(stream[0])) + 1;
    if (end - at < kAnsLanes * kAnsStateBits) {
        return false;
    }
    uint64_t s[kAnsLanes];
    for (uint64_t& state : s) {
        state = bits_near_end(stream, n_bytes, at) % kAnsStates;
        at += kAnsStateBits;
    }
    for (uint32_t i = decode_eights<B>(stream, end, table, m, at, s, y); i < m; ++i) {
        uint64_t& state = s[i % kAnsLanes];
        uint64_t window = bits_near_end(stream, n_bytes, at);
        uint32_t n_bits = 0;
        decode_byte<B>(state, table, window, n_bits, y + i);
        n_bits %= 256;
        if (n_bits > end - at) {
            return false;
        }
        at += n_bits;
    }
    uint64_t any = 0;
    for (const uint64_t state : s) {
        any |= state;
    }
    return any == 0 && at == end;
}

template <class B>
constexpr AnsKernels ans_kernels() noexcept {
    return {count_bytes, encode_stream<B>, decode_stream<B>};
}

}  // namespace
}  // namespace ogds
