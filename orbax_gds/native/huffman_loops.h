// The loops of codec 5 over one way to take bits: B::low(value) is the low 11 bits of a value,
// B::n_above(value) the number of zeros above the highest 1, and B::above(value, n) what is left
// of it without its low n bits, where of n only the low 6 bits count.
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
// anything. The low byte of `n` is their number; above it lies anything, too.
struct Growing {
    uint64_t held;
    uint64_t n;
    uint8_t* at;
    uint64_t any = 0;  // every n that was flushed, ORed: kUncoded and the bits above show
};

template <class B>
inline void put(Growing& stream, uint64_t code) noexcept {
    stream.held = B::above(stream.held, code) | code;
    stream.n += code;
}

// At most 51 bits are held; 7 at most remain.
template <class B>
inline void flush(Growing& stream) noexcept {
    const uint64_t n = stream.n & 0xFF;
    stream.any |= stream.n;
    store_u64le(stream.at, B::above(stream.held, 0 - n));
    stream.at += n / 8;
    stream.n = n % 8;
}

template <class B>
inline void put_four(Growing& stream, const uint8_t* y, const uint64_t* code_of) noexcept {
    put<B>(stream, code_of[y[3 * kHuffmanStreams]]);
    put<B>(stream, code_of[y[2 * kHuffmanStreams]]);
    put<B>(stream, code_of[y[kHuffmanStreams]]);
    put<B>(stream, code_of[y[0]]);
    flush<B>(stream);
}

// Four streams at once: their sums do not wait for each other.
template <class B>
void put_groups(const uint8_t* y, uint32_t n_groups, const uint64_t* code_of,
                Growing (&streams)[kHuffmanStreams], uint32_t first) noexcept {
    Growing a = streams[first];
    Growing b = streams[first + 1];
    Growing c = streams[first + 2];
    Growing d = streams[first + 3];
    for (const uint8_t* group = y + size_t{n_groups} * kPutWords + first; n_groups > 0;
         --n_groups) {
        group -= kPutWords;
        put_four<B>(a, group, code_of);
        put_four<B>(b, group + 1, code_of);
        put_four<B>(c, group + 2, code_of);
        put_four<B>(d, group + 3, code_of);
    }
    streams[first] = a;
    streams[first + 1] = b;
    streams[first + 2] = c;
    streams[first + 3] = d;
}

template <class B>
bool encode_huffman(const uint8_t* y, uint32_t m, const HuffmanEncodeTable& table,
                    HuffmanStreams& streams) noexcept {
    Growing growing[kHuffmanStreams];
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        growing[s] = {0, 0, streams.of[s]};
    }
    const uint32_t n_groups = m / kPutWords;
    for (uint32_t i = m; i > n_groups * kPutWords; --i) {
        Growing& stream = growing[(i - 1) % kHuffmanStreams];
        put<B>(stream, table.of_byte[y[i - 1]]);
        flush<B>(stream);
    }
    put_groups<B>(y, n_groups, table.of_byte, growing, 0);
    put_groups<B>(y, n_groups, table.of_byte, growing, 4);
    uint64_t any = 0;
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        any |= growing[s].any;
        const auto whole = static_cast<uint32_t>(growing[s].at - streams.of[s]);
        streams.n_bytes[s] = whole + (growing[s].n != 0 ? 1 : 0);
    }
    return (any & (7 * kUncoded)) == 0;
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
    return {encode_huffman<B>, decode_huffman<B>};
}

}  // namespace
}  // namespace ogds
