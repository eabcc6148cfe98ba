// The ladder for AVX2 and BMI2: words are split and merged 64 at a time in four 32-byte registers,
// levels are coded as bit planes (ladder_levels_bmi2.h).
#include <immintrin.h>

#include "bytes.h"
#include "ladder_kernels.h"
#include "ladder_levels_bmi2.h"

namespace ogds {
namespace {

using Vector = __m256i;

inline Vector splat(int value) noexcept { return _mm256_set1_epi8(static_cast<char>(value)); }

// Two 16-byte pieces `gap` bytes apart. Packing two registers works within each half, so the
// pieces are chosen such that the packed bytes come out in order.
inline Vector load_halves(const uint8_t* at, size_t gap) noexcept {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + gap));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

inline void store_halves(uint8_t* at, size_t gap, Vector v) noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at + gap), _mm256_extracti128_si256(v, 1));
}

inline Vector load(const uint8_t* at) noexcept {
    return _mm256_loadu_si256(reinterpret_cast<const Vector*>(at));
}

inline void store(uint8_t* at, Vector v) noexcept {
    _mm256_storeu_si256(reinterpret_cast<Vector*>(at), v);
}

inline Vector broadcast16(const uint8_t* table) noexcept {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}

// The top 16 bits of 32 words, words 0-7 | 16-23 in `a` and 8-15 | 24-31 in `b`.
struct Tops {
    Vector a, b;
};

struct Bf16 {
    static constexpr uint32_t kWordBytes = 2;
    static constexpr uint32_t kLowBytes = 0;

    static Tops load_tops(const uint8_t* words, uint8_t*) noexcept {
        return {load_halves(words, 32), load_halves(words + 16, 32)};
    }
    static void store_tops(uint8_t* words, const uint8_t*, const Tops& tops) noexcept {
        store_halves(words, 32, tops.a);
        store_halves(words + 16, 32, tops.b);
    }
};

struct Fp32 {
    static constexpr uint32_t kWordBytes = 4;
    static constexpr uint32_t kLowBytes = 2;

    // Words 0-7 | 16-23 from `words` on; their low 16 bits go to `low`.
    static Vector load_half(const uint8_t* words, uint8_t* low) noexcept {
        const Vector mask = _mm256_set1_epi32(0xFFFF);
        const Vector first = load_halves(words, 64);
        const Vector second = load_halves(words + 16, 64);
        store_halves(low, 32, _mm256_packus_epi32(_mm256_and_si256(first, mask),
                                                  _mm256_and_si256(second, mask)));
        return _mm256_packus_epi32(_mm256_srli_epi32(first, 16), _mm256_srli_epi32(second, 16));
    }
    static Tops load_tops(const uint8_t* words, uint8_t* low) noexcept {
        return {load_half(words, low), load_half(words + 32, low + 16)};
    }
    static void store_half(uint8_t* words, const uint8_t* low, Vector top) noexcept {
        const Vector bottom = load_halves(low, 32);
        store_halves(words, 64, _mm256_unpacklo_epi16(bottom, top));
        store_halves(words + 16, 64, _mm256_unpackhi_epi16(bottom, top));
    }
    static void store_tops(uint8_t* words, const uint8_t* low, const Tops& tops) noexcept {
        store_half(words, low, tops.a);
        store_half(words + 32, low + 16, tops.b);
    }
};

inline uint32_t bit_plane(Vector ranks, int bit) noexcept {
    // Within 16 bits the shift carries bits across bytes, but never into the sign bits we take.
    const Vector shifted = _mm256_sll_epi16(ranks, _mm_cvtsi32_si128(7 - bit));
    return static_cast<uint32_t>(_mm256_movemask_epi8(shifted));
}

inline uint64_t bit_plane(Vector ranks_low, Vector ranks_high, int bit) noexcept {
    return bit_plane(ranks_low, bit) | static_cast<uint64_t>(bit_plane(ranks_high, bit)) << 32;
}

struct Split32 {
    Vector exponents, symbols;
};

// Splits 32 words: stores s and low plane, returns exponents and symbols.
template <class Format>
inline Split32 split32(const uint8_t* words, uint8_t* s, uint8_t* low, Vector emax) noexcept {
    const Vector sign = _mm256_set1_epi16(0x80);
    const Vector mantissa = _mm256_set1_epi16(0x7F);
    const Tops tops = Format::load_tops(words, low);
    const auto s_of = [&](Vector top) {
        return _mm256_or_si256(_mm256_and_si256(top, mantissa),
                               _mm256_and_si256(_mm256_srli_epi16(top, 8), sign));
    };
    const auto exponent_of = [](Vector top) {
        return _mm256_srli_epi16(_mm256_add_epi16(top, top), 8);
    };
    store(s, _mm256_packus_epi16(s_of(tops.a), s_of(tops.b)));
    const Vector exponents = _mm256_packus_epi16(exponent_of(tops.a), exponent_of(tops.b));
    return {exponents, _mm256_min_epu8(_mm256_sub_epi8(emax, exponents), splat(kEscapeSymbol))};
}

// Appends the exponents whose bit is set.
inline uint32_t append_escapes(uint64_t which, Vector low, Vector high, uint8_t* escapes,
                               uint32_t n_escapes) noexcept {
    alignas(32) uint8_t exponents[64];
    store(exponents, low);
    store(exponents + 32, high);
    for (; which != 0; which &= which - 1) {
        escapes[n_escapes++] = exponents[_tzcnt_u64(which)];
    }
    return n_escapes;
}

// The tables in registers: the compiler cannot keep them there across stores of bytes.
struct SplitTables {
    Vector emax, rank_of_symbol;
};

// Splits 64 words, of which those in `valid` count.
template <class Format>
inline uint32_t split64(const uint8_t* words, uint64_t valid, const SplitTables& tables,
                        uint8_t* s, uint8_t* low, RankPlanes& ranks, uint32_t g, uint8_t* escapes,
                        uint32_t n_escapes) noexcept {
    const Vector escape = splat(kEscapeSymbol);
    const Split32 first = split32<Format>(words, s, low, tables.emax);
    const Split32 second = split32<Format>(words + 32 * Format::kWordBytes, s + 32,
                                           low + 32 * Format::kLowBytes, tables.emax);
    const Vector rank_low = _mm256_shuffle_epi8(tables.rank_of_symbol, first.symbols);
    const Vector rank_high = _mm256_shuffle_epi8(tables.rank_of_symbol, second.symbols);
    ranks.bit[0][g] = bit_plane(rank_low, rank_high, 0);
    ranks.bit[1][g] = bit_plane(rank_low, rank_high, 1);
    ranks.bit[2][g] = bit_plane(rank_low, rank_high, 2);
    ranks.bit[3][g] = bit_plane(rank_low, rank_high, 3);
    const Vector largest = _mm256_max_epu8(first.symbols, second.symbols);
    if (__builtin_expect(_mm256_movemask_epi8(_mm256_cmpeq_epi8(largest, escape)) != 0, 0)) {
        const Vector is_escape_low = _mm256_cmpeq_epi8(first.symbols, escape);
        const Vector is_escape_high = _mm256_cmpeq_epi8(second.symbols, escape);
        const uint64_t which = bit_plane(is_escape_low, is_escape_high, 7) & valid;
        return append_escapes(which, first.exponents, second.exponents, escapes, n_escapes);
    }
    return n_escapes;
}

template <class Format>
uint32_t split(const uint8_t* words, uint32_t m, const LadderTables& header, uint8_t* planes,
               RankPlanes& ranks, uint8_t* escapes) noexcept {
    const SplitTables tables = {splat(header.emax), broadcast16(header.rank_of_symbol)};
    uint8_t* low = planes + m;
    uint32_t n_escapes = 0;
    uint32_t i = 0;
    for (; i + 64 <= m; i += 64) {
        n_escapes = split64<Format>(words + Format::kWordBytes * i, ~uint64_t{0}, tables,
                                    planes + i, low + Format::kLowBytes * i, ranks, i / 64,
                                    escapes, n_escapes);
    }
    if (i < m) {
        const uint32_t rest = m - i;
        uint8_t last_words[64 * Format::kWordBytes] = {};
        uint8_t last_s[64];
        uint8_t last_low[64 * 2];
        __builtin_memcpy(last_words, words + Format::kWordBytes * i, Format::kWordBytes * rest);
        n_escapes = split64<Format>(last_words, low_bits(rest), tables, last_s, last_low, ranks,
                                    i / 64, escapes, n_escapes);
        __builtin_memcpy(planes + i, last_s, rest);
        __builtin_memcpy(low + Format::kLowBytes * i, last_low, Format::kLowBytes * rest);
    }
    return n_escapes;
}

uint32_t encode_level(uint32_t width, const RankPlanes& values, uint32_t n, uint8_t* out,
                      RankPlanes& next) noexcept {
    switch (width) {
        case 1: return encode_narrow_level<1>(values, n, out, next);
        case 2: return encode_narrow_level<2>(values, n, out, next);
        default: encode_last_level(values, n, out); return 0;
    }
}

LevelResult decode_level(uint32_t width, const uint8_t* in, uint32_t n, const RankPlanes& next,
                         uint32_t n_next, RankPlanes& values) noexcept {
    switch (width) {
        case 1: return decode_narrow_level<1>(in, n, next, n_next, values);
        case 2: return decode_narrow_level<2>(in, n, next, n_next, values);
        default: decode_last_level(in, n, values); return LevelResult::kOk;
    }
}

// Byte i is 0xFF where bit i of the 32 bits is set, else 0.
inline Vector bytes_of_bits(uint32_t bits) noexcept {
    const Vector byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                            2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const Vector bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
    const Vector spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte_of);
    return _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of);
}

// The ranks of the 32 values from word `half` of each plane on, a byte each.
inline Vector ranks32(const RankPlanes& ranks, uint32_t half) noexcept {
    const auto plane = [&](int bit) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(ranks.bit[bit]);
        return _mm256_and_si256(bytes_of_bits(load_u32le(bytes + 4 * half)), splat(1 << bit));
    };
    return _mm256_or_si256(_mm256_or_si256(plane(0), plane(1)),
                           _mm256_or_si256(plane(2), plane(3)));
}

// Replaces the exponents of the escapes. False if there are not enough left.
__attribute__((noinline)) bool patch_escapes(uint64_t which, const uint8_t* escapes, uint32_t left,
                                             uint8_t* exponents) noexcept {
    if (static_cast<uint32_t>(_mm_popcnt_u64(which)) > left) {
        return false;
    }
    for (; which != 0; which &= which - 1) {
        exponents[_tzcnt_u64(which)] = *escapes++;
    }
    return true;
}

template <class Format>
inline void merge32(Vector exponents, const uint8_t* s_at, const uint8_t* low,
                    uint8_t* words) noexcept {
    const Vector sign = splat(0x80);
    const Vector rest = splat(0x7F);
    const Vector s = load(s_at);
    const Vector upper = _mm256_or_si256(_mm256_and_si256(s, sign),
                                         _mm256_and_si256(_mm256_srli_epi16(exponents, 1), rest));
    const Vector lower = _mm256_or_si256(_mm256_and_si256(s, rest),
                                         _mm256_and_si256(_mm256_slli_epi16(exponents, 7), sign));
    Format::store_tops(words, low,
                       {_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper)});
}

// Asks for the memory of words that come soon; past the end it does no harm.
template <class Format>
inline void prefetch_words(const uint8_t* words) noexcept {
    constexpr uint32_t kAheadBytes = 2048;
    for (uint32_t line = 0; line < 64 * Format::kWordBytes; line += 64) {
        __builtin_prefetch(words + kAheadBytes + line, 1);
    }
}

struct MergeTables {
    Vector exponent_of_rank, escape_rank;
};

// Merges 64 words, of which those in `valid` count.
template <class Format>
inline bool merge64(const RankPlanes& ranks, uint32_t g, uint64_t valid,
                    const MergeTables& tables, const uint8_t* s, const uint8_t* low,
                    const uint8_t* escapes, uint32_t n_escapes, uint32_t& n_taken,
                    uint8_t* words) noexcept {
    const Vector rank_low = ranks32(ranks, 2 * g);
    const Vector rank_high = ranks32(ranks, 2 * g + 1);
    Vector low_exponents = _mm256_shuffle_epi8(tables.exponent_of_rank, rank_low);
    Vector high_exponents = _mm256_shuffle_epi8(tables.exponent_of_rank, rank_high);
    const Vector is_escape_low = _mm256_cmpeq_epi8(rank_low, tables.escape_rank);
    const Vector is_escape_high = _mm256_cmpeq_epi8(rank_high, tables.escape_rank);
    const Vector any = _mm256_or_si256(is_escape_low, is_escape_high);
    if (__builtin_expect(!_mm256_testz_si256(any, any), 0)) {
        alignas(32) uint8_t exponents[64];
        const uint64_t which = bit_plane(is_escape_low, is_escape_high, 7) & valid;
        store(exponents, low_exponents);
        store(exponents + 32, high_exponents);
        if (!patch_escapes(which, escapes + n_taken, n_escapes - n_taken, exponents)) {
            return false;
        }
        n_taken += static_cast<uint32_t>(_mm_popcnt_u64(which));
        low_exponents = load(exponents);
        high_exponents = load(exponents + 32);
    }
    merge32<Format>(low_exponents, s, low, words);
    merge32<Format>(high_exponents, s + 32, low + 32 * Format::kLowBytes,
                    words + 32 * Format::kWordBytes);
    return true;
}

template <class Format>
bool merge(const RankPlanes& ranks, uint32_t m, const LadderTables& header, const uint8_t* planes,
           const uint8_t* escapes, uint32_t n_escapes, uint8_t* words) noexcept {
    const MergeTables tables = {broadcast16(header.exponent_of_rank), splat(header.escape_rank)};
    const uint8_t* low = planes + m;
    uint32_t n_taken = 0;
    uint32_t i = 0;
    for (; i + 64 <= m; i += 64) {
        prefetch_words<Format>(words + Format::kWordBytes * i);
        if (!merge64<Format>(ranks, i / 64, ~uint64_t{0}, tables, planes + i,
                             low + Format::kLowBytes * i, escapes, n_escapes, n_taken,
                             words + Format::kWordBytes * i)) {
            return false;
        }
    }
    if (i < m) {
        const uint32_t rest = m - i;
        uint8_t last_words[64 * Format::kWordBytes];
        uint8_t last_s[64] = {};
        uint8_t last_low[64 * 2] = {};
        __builtin_memcpy(last_s, planes + i, rest);
        __builtin_memcpy(last_low, low + Format::kLowBytes * i, Format::kLowBytes * rest);
        if (!merge64<Format>(ranks, i / 64, low_bits(rest), tables, last_s, last_low, escapes,
                             n_escapes, n_taken, last_words)) {
            return false;
        }
        __builtin_memcpy(words + Format::kWordBytes * i, last_words, Format::kWordBytes * rest);
    }
    return n_taken == n_escapes;
}

}  // namespace

const LadderKernels kLadderAvx2 = {split<Bf16>,  split<Fp32>, encode_level,
                                   decode_level, merge<Bf16>, merge<Fp32>};

}  // namespace ogds
