// The loops of codec 5 over one way to take bits: B::low(value) is the low 11 bits of a value,
// B::n_above(value) the number of zeros above the highest 1, and B::above(value, n) what is left
// of it without its low n bits, where of n only the low 6 bits count. And one way to look for bytes
// of a set, B::has_any.
//
// Include only from files of one instruction set.
#pragma once

#include "bytes.h"
#include "huffman_kernels.h"

namespace ogds {
namespace {

// --- encoding ------------------------------------------------------------------------------------

// Bytes of a stream that are coded between two flushes: as many as surely fit.
constexpr uint32_t kPutAtOnce = 4;
constexpr uint32_t kPutWords = kHuffmanStreams * kPutAtOnce;

// A stream that grows. The newest bits are on top of `held`; below what is not yet written lies
// anything. The low byte of `n` is their number; above are the bytes without a code in units of
// kUncoded, and above those lies anything.
struct Growing {
    uint64_t held;
    uint64_t n;
    uint8_t* at;
};

// Two codes, one behind the other, as one; the low byte is the length of both.
struct Pair {
    uint64_t bits;
    uint64_t n;
};

template <class B>
inline Pair join(uint64_t first, uint64_t second) noexcept {
    return {B::above(first, second) | second, first + second};
}

template <class B>
inline void put(Growing& stream, Pair codes) noexcept {
    stream.held = B::above(stream.held, codes.n) | codes.bits;
    stream.n += codes.n;
}

// At most 51 bits are held, above the lengths of codes; 7 at most remain.
template <class B>
inline void flush(Growing& stream) noexcept {
    store_u64le(stream.at, B::above(stream.held, 0 - stream.n));
    stream.at += (stream.n & 0xFF) / 8;
    stream.n &= ~uint64_t{0xF8};
}

template <class B>
inline void put_four(Growing& stream, const uint8_t* y, const uint64_t* code_of) noexcept {
    put<B>(stream, join<B>(code_of[y[3 * kHuffmanStreams]], code_of[y[2 * kHuffmanStreams]]));
    put<B>(stream, join<B>(code_of[y[kHuffmanStreams]], code_of[y[0]]));
    flush<B>(stream);
}

// Two streams at once, which fit into registers.
template <class B>
void put_groups(const uint8_t* y, uint32_t n_groups, const uint64_t* code_of, Growing& first,
                Growing& second) noexcept {
    Growing a = first;
    Growing b = second;
    for (const uint8_t* group = y + size_t{n_groups} * kPutWords; group != y;) {
        group -= kPutWords;
        put_four<B>(a, group, code_of);
        put_four<B>(b, group + 1, code_of);
    }
    first = a;
    second = b;
}

template <class B>
bool encode_huffman(const uint8_t* y, uint32_t m, const HuffmanEncodeTable& table,
                    HuffmanStreams& streams) noexcept {
    Growing growing[kHuffmanStreams];
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        growing[s] = {0, 0, streams.of[s]};
    }
    for (uint32_t i = m; i > m - m % kPutWords; --i) {
        Growing& stream = growing[(i - 1) % kHuffmanStreams];
        const uint64_t code = table.of_byte[y[i - 1]];
        put<B>(stream, {code, code});
        flush<B>(stream);
    }
    // So many that they stay in a first-level cache for all streams.
    constexpr uint32_t kGroupsAtOnce = 256;
    for (uint32_t left = m / kPutWords; left > 0;) {
        const uint32_t n = left < kGroupsAtOnce ? left : kGroupsAtOnce;
        left -= n;
        for (uint32_t s = 0; s < kHuffmanStreams; s += 2) {
            put_groups<B>(y + size_t{left} * kPutWords + s, n, table.of_byte, growing[s],
                          growing[s + 1]);
        }
    }
    uint64_t uncoded = 0;
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        uncoded |= growing[s].n & kAnyUncoded;
        const auto whole = static_cast<uint32_t>(growing[s].at - streams.of[s]);
        streams.n_bytes[s] = whole + ((growing[s].n & 0xFF) != 0 ? 1 : 0);
    }
    return uncoded == 0;
}

// --- decoding ------------------------------------------------------------------------------------

// Bytes of a stream that are decoded between two refills: as many as surely fit.
constexpr uint32_t kTakeAtOnce = 5;
constexpr uint32_t kTakeWords = kHuffmanStreams * kTakeAtOnce;

// Above the bits of a stream that were loaded stands a 1: it tells how many were taken.
constexpr uint64_t kMark = uint64_t{1} << 63;

// Five codes take at most 55 bits, and at least 56 are there afterwards.
template <class B>
inline void refill(uint64_t& bits, const uint8_t*& at) noexcept {
    const uint64_t n_taken = B::n_above(bits);
    at += n_taken / 8;
    bits = (load_u64le(at) | kMark) >> (n_taken % 8);
}
constexpr size_t kMostRefillBytes = 7;  // by which one moves on
constexpr size_t kLoadBytes = 8;

// Below the byte there is written, too: what comes next overwrites it.
template <class B>
inline void take(uint64_t& bits, const HuffmanDecodeTable& table, uint8_t* y) noexcept {
    const uint64_t entry = table.of_bits[B::low(bits)];
    bits = B::above(bits, entry);
    store_u16le(y - 1, static_cast<uint16_t>(entry));
}

// Where each stream is: a bit from the start of the first.
struct Positions {
    uint64_t of[kHuffmanStreams];
};

// How many groups can be decoded without a load that ends behind `n_bytes`.
inline uint32_t safe_groups(const Positions& positions, size_t n_bytes, uint32_t most) noexcept {
    uint64_t n = most;
    for (const uint64_t position : positions.of) {
        const uint64_t at = position / 8;
        const uint64_t fit =
            at + kLoadBytes <= n_bytes ? (n_bytes - kLoadBytes - at) / kMostRefillBytes + 1 : 0;
        n = fit < n ? fit : n;
    }
    return static_cast<uint32_t>(n);
}

// Decodes n groups, the last of which ends at `y` and the first of which does not begin at the
// buffer's begin.
template <class B>
void take_groups(const uint8_t* streams, Positions& positions, const HuffmanDecodeTable& table,
                 uint32_t n, uint8_t* y) noexcept {
    uint64_t* p = positions.of;
    const uint8_t *at0 = streams + p[0] / 8, *at1 = streams + p[1] / 8;
    const uint8_t *at2 = streams + p[2] / 8, *at3 = streams + p[3] / 8;
    const uint8_t *at4 = streams + p[4] / 8, *at5 = streams + p[5] / 8;
    const uint8_t *at6 = streams + p[6] / 8, *at7 = streams + p[7] / 8;
    uint64_t b0 = kMark >> (p[0] % 8), b1 = kMark >> (p[1] % 8), b2 = kMark >> (p[2] % 8);
    uint64_t b3 = kMark >> (p[3] % 8), b4 = kMark >> (p[4] % 8), b5 = kMark >> (p[5] % 8);
    uint64_t b6 = kMark >> (p[6] % 8), b7 = kMark >> (p[7] % 8);
    const auto take_eight = [&](uint8_t* eight) noexcept {
        take<B>(b7, table, eight + 7);
        take<B>(b6, table, eight + 6);
        take<B>(b5, table, eight + 5);
        take<B>(b4, table, eight + 4);
        take<B>(b3, table, eight + 3);
        take<B>(b2, table, eight + 2);
        take<B>(b1, table, eight + 1);
        take<B>(b0, table, eight);
    };
    for (; n > 0; --n) {
        refill<B>(b7, at7);
        refill<B>(b6, at6);
        refill<B>(b5, at5);
        refill<B>(b4, at4);
        refill<B>(b3, at3);
        refill<B>(b2, at2);
        refill<B>(b1, at1);
        refill<B>(b0, at0);
        y -= kTakeWords;
        take_eight(y + 4 * kHuffmanStreams);
        take_eight(y + 3 * kHuffmanStreams);
        take_eight(y + 2 * kHuffmanStreams);
        take_eight(y + kHuffmanStreams);
        take_eight(y);
    }
    const uint64_t bits[] = {b0, b1, b2, b3, b4, b5, b6, b7};
    const uint8_t* at[] = {at0, at1, at2, at3, at4, at5, at6, at7};
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        p[s] = 8 * static_cast<uint64_t>(at[s] - streams) + B::n_above(bits[s]);
    }
}

// Decodes the bytes from `begin` to `end` without a load behind n_bytes. False if a stream does.
template <class B>
bool take_carefully(const uint8_t* streams, size_t n_bytes, Positions& positions,
                    const HuffmanDecodeTable& table, uint32_t begin, uint32_t end,
                    uint8_t* y) noexcept {
    for (uint32_t s = 0; s < kHuffmanStreams && begin + s < end; ++s) {
        uint64_t at = positions.of[s];
        for (uint32_t left = (end - begin - s + kHuffmanStreams - 1) / kHuffmanStreams; left > 0;) {
            if (at > 8 * uint64_t{n_bytes}) {
                return false;
            }
            const size_t there = n_bytes - at / 8;
            uint64_t bits = there >= kLoadBytes ? load_u64le(streams + at / 8)
                                                : load_partial_u64le(streams + at / 8, there);
            bits >>= at % 8;
            for (uint32_t k = 0; k < kTakeAtOnce && left > 0; ++k) {
                const uint64_t entry = table.of_bits[B::low(bits)];
                bits = B::above(bits, entry);
                at += entry & 0xFF;
                --left;
                y[begin + s + left * kHuffmanStreams] = static_cast<uint8_t>(entry >> 8);
            }
        }
        positions.of[s] = at;
    }
    return true;
}

template <class B>
bool decode_huffman(const uint8_t* streams, const uint32_t (&ends)[kHuffmanStreams],
                    const HuffmanDecodeTable& table, uint32_t m, uint8_t* y) noexcept {
    const size_t n_bytes = ends[kHuffmanStreams - 1];
    Positions positions = {};
    for (uint32_t s = 1; s < kHuffmanStreams; ++s) {
        positions.of[s] = 8 * uint64_t{ends[s - 1]};
    }
    uint32_t left = m - m % kHuffmanStreams;
    if (!take_carefully<B>(streams, n_bytes, positions, table, left, m, y)) {
        return false;
    }
    while (left > kTakeWords) {
        const uint32_t n = safe_groups(positions, n_bytes, (left - 1) / kTakeWords);
        if (n == 0) {
            break;
        }
        take_groups<B>(streams, positions, table, n, y + left);
        left -= n * kTakeWords;
    }
    if (!take_carefully<B>(streams, n_bytes, positions, table, 0, left, y)) {
        return false;
    }
    bool exact = true;
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        exact &= (positions.of[s] + 7) / 8 == ends[s];
    }
    return exact;
}

template <class B>
constexpr HuffmanKernels huffman_kernels() noexcept {
    return {B::has_any, encode_huffman<B>, decode_huffman<B>};
}

}  // namespace
}  // namespace ogds
