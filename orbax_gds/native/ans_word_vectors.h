// Splitting and merging of 16-bit words for codec 3 (FORMAT 7.7), for any register V (vector_*.h):
// groups of 128 words a lane.
//
// Include only from files of one instruction set.
#pragma once

#include "ans_words.h"
#include "bit_planes.h"
#include "bytes.h"
#include "ladder_formats.h"
#include "ladder_kernels.h"

namespace ogds {
namespace {

// Of the words of a part, a byte each. `top` are the bits of the mantissa that are in y.
template <class V>
struct AnsPart {
    typename V::T exponent, top, rest;
};

// What a word's two bytes are made of. put() finds anything above the four bits of `top`.
struct AnsBf16 {
    static constexpr Split kSplit = Split::kBf16;

    template <class V>
    static AnsPart<V> take(const Halves<V>& word) noexcept {
        const auto sign = V::and_(V::template right16<4>(word.high), V::splat(0x08));
        return {V::sub8(V::add8(word.high, word.high), V::negative8(word.low)),
                V::and_(V::template right16<3>(word.low), V::splat(0x0F)),
                V::select(V::splat(0x07), word.low, sign)};
    }

    template <class V>
    static Halves<V> put(const AnsPart<V>& part) noexcept {
        const auto mantissa = V::select(V::splat(0x78), V::template left16<3>(part.top), part.rest);
        return {V::select(V::splat(0x80), V::template left16<7>(part.exponent), mantissa),
                V::select(V::splat(0x80), V::template left16<4>(part.rest),
                          V::template right16<1>(part.exponent))};
    }
};

struct AnsFp16 {
    static constexpr Split kSplit = Split::kFp16;

    template <class V>
    static AnsPart<V> take(const Halves<V>& word) noexcept {
        const auto low_top = V::and_(V::template right16<6>(word.low), V::splat(0x03));
        return {V::and_(V::template right16<2>(word.high), V::splat(0x1F)),
                V::select(V::splat(0x0C), V::template left16<2>(word.high), low_top),
                V::select(V::splat(0x40), V::template right16<1>(word.high),
                          V::and_(word.low, V::splat(0x3F)))};
    }

    template <class V>
    static Halves<V> put(const AnsPart<V>& part) noexcept {
        const auto high_top = V::and_(V::template right16<2>(part.top), V::splat(0x03));
        const auto magnitude =
            V::select(V::splat(0x7C), V::template left16<2>(part.exponent), high_top);
        return {V::select(V::splat(0xC0), V::template left16<6>(part.top), part.rest),
                V::select(V::splat(0x80), V::template left16<1>(part.rest), magnitude)};
    }
};

template <class V, class F>
struct AnsGroup {
    using T = typename V::T;
    static constexpr uint32_t kWords = V::kBytes * 8;
    static constexpr uint32_t kBits = ans_rest_bits(F::kSplit);

    // Returns whether there was an escape. Bitmaps lie `bitmap_bytes` apart.
    static bool split(const uint8_t* words, const uint8_t* predicted, uint8_t* y, uint8_t* bitmaps,
                      size_t bitmap_bytes, T& any_rest) noexcept {
        const T zero_symbol = V::splat(kZeroSymbol);
        T rests[8];
        T escaped = V::splat(0);
        for (uint32_t q = 0; q < 8; ++q) {
            const AnsPart<V> part = F::template take<V>(load_halves<V>(words + 32 * q));
            const T distance =
                V::and_(V::sub8(V::load(predicted + 16 * q, kLaneWords), part.exponent),
                        V::splat(max_exponent(F::kSplit)));
            const T cut = V::min8(distance, V::splat(kAnsWindow));
            const T near = V::sub8(cut, V::equal8(cut, V::splat(kAnsWindow)));  // or the escape
            const T symbol =
                V::select(V::equal8(part.exponent, V::splat(0)), zero_symbol, near);
            escaped = V::or_(escaped, V::equal8(symbol, V::splat(kEscapeSymbol)));
            V::store(y + 16 * q, kLaneWords, V::or_(V::template left16<4>(symbol), part.top));
            any_rest = V::or_(any_rest, part.rest);
            rests[q] = part.rest;
        }
        T planes[8];
        if constexpr (kBits == 4) {
            T four[4];
            to_planes4<V>(rests, four);
            for (uint32_t b = 0; b < 4; ++b) {
                planes[b] = four[b];
            }
        } else {
            to_planes<V>(rests);
            for (uint32_t b = 0; b < kBits; ++b) {
                planes[b] = rests[b];
            }
        }
        for (uint32_t b = 0; b < kBits; ++b) {
            V::store_whole(bitmaps + (kBits - 1 - b) * bitmap_bytes, planes[b]);
        }
        return V::any(escaped);
    }

    // Inverse; an escape becomes some exponent. Returns whether there was one.
    static bool merge(const uint8_t* y, const uint8_t* bitmaps, size_t bitmap_bytes,
                      const uint8_t* predicted, uint8_t* words) noexcept {
        T rests[8];
        if constexpr (kBits == 4) {
            T planes[4];
            for (uint32_t b = 0; b < 4; ++b) {
                planes[b] = V::load_whole(bitmaps + (3 - b) * bitmap_bytes);
            }
            from_planes4<V>(planes, rests);
        } else {
            rests[7] = V::splat(0);
            for (uint32_t b = 0; b < kBits; ++b) {
                rests[b] = V::load_whole(bitmaps + (kBits - 1 - b) * bitmap_bytes);
            }
            from_planes<V>(rests);
        }
        T escaped = V::splat(0);
        for (uint32_t q = 0; q < 8; ++q) {
            const T top = V::load(y + 16 * q, kLaneWords);
            const T symbol = V::and_(V::template right16<4>(top), V::splat(0x0F));
            const T near = V::and_(V::sub8(V::load(predicted + 16 * q, kLaneWords), symbol),
                                   V::splat(max_exponent(F::kSplit)));
            const T is_zero = V::equal8(symbol, V::splat(kZeroSymbol));
            escaped = V::or_(escaped, V::equal8(symbol, V::splat(kEscapeSymbol)));
            store_halves<V>(F::template put<V>({V::select(is_zero, V::splat(0), near), top,
                                                rests[q]}),
                            words + 32 * q);
        }
        return V::any(escaped);
    }
};

// Calls fn(i) for the escapes among n bytes y, in order; n is a multiple of 8.
template <class Fn>
inline void for_each_escape(const uint8_t* y, uint32_t n, Fn fn) noexcept {
    for (uint32_t first = 0; first < n; first += 8) {
        const uint64_t eight = load_u64le(y + first);
        uint64_t found = eight & eight << 1 & eight << 2 & eight << 3 & 0x8080808080808080u;
        for (; found != 0; found &= found - 1) {
            fn(first + static_cast<uint32_t>(__builtin_ctzll(found)) / 8);
        }
    }
}

template <class F>
inline uint32_t append_ans_escapes(const uint8_t* words, const uint8_t* y, uint32_t n,
                                   uint8_t* escapes, uint32_t n_escapes) noexcept {
    for_each_escape(y, n, [&](uint32_t i) {
        const uint32_t word = load_u16le(words + 2 * i);
        escapes[n_escapes++] = static_cast<uint8_t>(word >> split_bits(F::kSplit).mantissa &
                                                    max_exponent(F::kSplit));
    });
    return n_escapes;
}

// Gives escaped words their exponents. False if there are not enough.
template <class F>
inline bool patch_ans_escapes(const uint8_t* y, uint32_t n, const uint8_t* escapes,
                              uint32_t n_escapes, uint32_t& n_taken, uint8_t* words) noexcept {
    constexpr uint32_t kShift = split_bits(F::kSplit).mantissa;
    constexpr uint32_t kMask = max_exponent(F::kSplit) << kShift;
    bool enough = true;
    for_each_escape(y, n, [&](uint32_t i) {
        enough = enough && n_taken < n_escapes;
        if (enough) {
            const uint32_t exponent = uint32_t{escapes[n_taken++]} << kShift & kMask;
            const uint32_t word = (load_u16le(words + 2 * i) & ~kMask) | exponent;
            store_u16le(words + 2 * i, static_cast<uint16_t>(word));
        }
    });
    return enough;
}

template <class V, class F>
uint32_t split_ans(const uint8_t* words, uint32_t m, const uint8_t* predicted, uint8_t* y,
                   uint8_t* rests, uint8_t* escapes, uint32_t& any_rest) noexcept {
    using G = AnsGroup<V, F>;
    const size_t bitmap_bytes = level_bytes(1, m);
    typename V::T any = V::splat(0);
    uint32_t n_escapes = 0;
    uint32_t i = 0;
    for (; i + G::kWords <= m; i += G::kWords) {
        const uint8_t* group = words + 2 * i;
        if (G::split(group, predicted + i, y + i, rests + i / 8, bitmap_bytes, any)) {
            n_escapes = append_ans_escapes<F>(group, y + i, G::kWords, escapes, n_escapes);
        }
    }
    if (i < m) {
        const uint32_t left = m - i;
        uint8_t group[2 * G::kWords] = {};
        uint8_t group_predicted[G::kWords] = {};
        uint8_t group_y[G::kWords];
        uint8_t bitmaps[G::kBits][V::kBytes];
        __builtin_memcpy(group, words + 2 * i, 2 * left);
        __builtin_memcpy(group_predicted, predicted + i, left);
        // Words of zeros are no escapes.
        G::split(group, group_predicted, group_y, bitmaps[0], V::kBytes, any);
        n_escapes = append_ans_escapes<F>(group, group_y, G::kWords, escapes, n_escapes);
        __builtin_memcpy(y + i, group_y, left);
        for (uint32_t b = 0; b < G::kBits; ++b) {
            __builtin_memcpy(rests + b * bitmap_bytes + i / 8, bitmaps[b], level_bytes(1, left));
        }
    }
    uint8_t bytes[V::kBytes];
    V::store_whole(bytes, any);
    any_rest = 0;
    for (const uint8_t byte : bytes) {
        any_rest |= byte;
    }
    return n_escapes;
}

template <class V, class F>
bool merge_ans(const uint8_t* y, const uint8_t* rests, uint32_t m, const uint8_t* predicted,
               const uint8_t* escapes, uint32_t n_escapes, uint8_t* words) noexcept {
    using G = AnsGroup<V, F>;
    const size_t bitmap_bytes = level_bytes(1, m);
    uint32_t n_taken = 0;
    uint32_t i = 0;
    for (; i + G::kWords <= m; i += G::kWords) {
        uint8_t* group = words + 2 * i;
        if (G::merge(y + i, rests + i / 8, bitmap_bytes, predicted + i, group) &&
            !patch_ans_escapes<F>(y + i, G::kWords, escapes, n_escapes, n_taken, group)) {
            return false;
        }
    }
    if (i < m) {
        const uint32_t left = m - i;
        uint8_t group[2 * G::kWords];
        uint8_t group_predicted[G::kWords] = {};
        uint8_t group_y[G::kWords] = {};
        uint8_t bitmaps[G::kBits][V::kBytes] = {};
        for (uint32_t b = 0; b < G::kBits; ++b) {
            __builtin_memcpy(bitmaps[b], rests + b * bitmap_bytes + i / 8, level_bytes(1, left));
        }
        __builtin_memcpy(group_predicted, predicted + i, left);
        __builtin_memcpy(group_y, y + i, left);
        G::merge(group_y, bitmaps[0], V::kBytes, group_predicted, group);
        if (!patch_ans_escapes<F>(group_y, G::kWords, escapes, n_escapes, n_taken, group)) {
            return false;
        }
        __builtin_memcpy(words + 2 * i, group, 2 * left);
    }
    return n_taken == n_escapes;
}

template <class V>
constexpr AnsWordKernels ans_word_kernels() noexcept {
    AnsWordKernels kernels{};
    const auto set = [&kernels](Split split, SplitAnsFn split_fn, MergeAnsFn merge_fn) {
        kernels.split[static_cast<uint32_t>(split)] = split_fn;
        kernels.merge[static_cast<uint32_t>(split)] = merge_fn;
    };
    set(Split::kBf16, split_ans<V, AnsBf16>, merge_ans<V, AnsBf16>);
    set(Split::kFp16, split_ans<V, AnsFp16>, merge_ans<V, AnsFp16>);
    set(Split::kFp32, split_ans_fp32, merge_ans_fp32);
    return kernels;
}

}  // namespace
}  // namespace ogds
