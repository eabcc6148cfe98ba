// The inner loops of the ladder (FORMAT 7.4), one set per instruction set.
//
// Ranks are kept as four bit planes: bit i of planes.bit[b] is bit b of value i. A plane is what a
// level writes, 64 values fit one machine word, and lowering, testing and handing on the values of
// a level are a few bit operations for all 64.
//
// No standard header with inline functions: this file is compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "splits.h"

namespace ogds {

inline constexpr uint32_t kSubBlockWords = 32768;
inline constexpr uint32_t kMaxLevels = 8;
inline constexpr uint8_t kEscapeSymbol = 15;
inline constexpr uint8_t kZeroSymbol = 14;  // with a prediction: the exponent is 0

struct RankPlanes {
    // Two words more than the values need: a reader takes 9 bytes from any position, a writer stores
    // 16 where its values end.
    static constexpr uint32_t kWords = kSubBlockWords / 64 + 2;
    uint64_t bit[4][kWords];
};

// The rank of one value, for loops that look at few.
inline uint32_t rank_at(const RankPlanes& ranks, uint32_t i) noexcept {
    uint32_t rank = 0;
    for (uint32_t b = 0; b < 4; ++b) {
        rank |= static_cast<uint32_t>((ranks.bit[b][i / 64] >> (i % 64)) & 1) << b;
    }
    return rank;
}

// What the ladder header says, in the forms the loops want.
struct LadderTables {
    uint16_t emax;
    uint8_t n_levels;
    uint8_t widths[kMaxLevels];
    uint8_t symbol_of_rank[16];
    uint8_t rank_of_symbol[16];
    uint8_t escape_rank;
    bool sign_slot = false;  // signs are 0: something else stands in their place in the first field
};

// Splits m words into the fields of the rest (fields_bytes of them) and ranks; returns the number
// of escapes, whose exponents go to `escapes` (room for m, of escape_bytes each).
//
// With prediction == nullptr the symbols are those of FORMAT 7.4. Else it has the predicted
// exponents p of the words, a byte each, and the symbols are those of FORMAT 7.6; there are
// predictions for bf16, fp16 and fp32 only.
using SplitFn = uint32_t (*)(const uint8_t* words, uint32_t m, const LadderTables& tables,
                             const uint8_t* prediction, uint8_t* fields, RankPlanes& ranks,
                             uint8_t* escapes) noexcept;

inline constexpr uint32_t kStreamAlignment = 16;

// Bytes that will be read soon: a loop asks for them on its way, so that memory and arithmetic need
// not wait for each other. Where nothing is mapped this does no harm.
struct Ahead {
    const uint8_t* at = nullptr;
    size_t n_bytes = 0;
};

// Consecutive words of a sub-block; `first` is a multiple of kSliceStep.
struct Slice {
    uint32_t first;
    uint32_t n_words;
};

inline constexpr uint32_t kSliceStep = 256;

// The escaped exponents that are left.
struct Escapes {
    const uint8_t* at;
    uint32_t n;
};

// Where the words of a slice go. With past_caches they are not wanted in a cache, and `words` is a
// multiple of kStreamAlignment; the end of the sub-block waits until they are written.
struct MergeTarget {
    uint8_t* words;
    bool past_caches = false;
    Ahead ahead = {};
    bool in_place = false;  // the words are where they belong
};

// Inverse of SplitFn for a slice of m words: `prediction` has its words alone, the ranks and fields
// all m. Takes its escapes from those that are left; false if they are too few. Of an escaped
// exponent only the bits of the split's exponents count.
using MergeFn = bool (*)(const RankPlanes& ranks, uint32_t m, Slice slice,
                         const LadderTables& tables, const uint8_t* prediction,
                         const uint8_t* fields, Escapes& escapes,
                         const MergeTarget& target) noexcept;

// Writes the n values of a level, level_bytes(width, n) bytes, and hands on the values that it
// cannot hold; returns their number. A width of 4 hands on nothing.
using EncodeLevelFn = uint32_t (*)(uint32_t width, const RankPlanes& values, uint32_t n,
                                   uint8_t* out, RankPlanes& next) noexcept;

enum class LevelResult : uint8_t { kOk, kCountDiffers, kRankTooLarge };

// Inverse: the n values of a level, of which n_next come from `next`. Any bytes are safe.
using DecodeLevelFn = LevelResult (*)(uint32_t width, const uint8_t* in, uint32_t n,
                                      const RankPlanes& next, uint32_t n_next,
                                      RankPlanes& values) noexcept;

// ORs the bitmap into bit 7 of the m bytes of the first field. False if one of these bits was set,
// which is a word with a sign: then the bytes are undefined.
using FillSignSlotFn = bool (*)(const uint8_t* bitmap, uint32_t m, uint8_t* bytes) noexcept;

// Inverse: the bitmap of bit 7.
using ReadSignSlotFn = void (*)(const uint8_t* bytes, uint32_t m, uint8_t* bitmap) noexcept;

// The predicted exponents of n words of a row: the offsets of their columns plus of_row, as far as
// the mask goes.
using PredictRowFn = void (*)(const uint8_t* of_column, uint32_t n, uint8_t of_row, uint8_t mask,
                              uint8_t* predicted) noexcept;

// Indexed by Split; nullptr for kNone.
struct LadderKernels {
    SplitFn split[kSplits];
    MergeFn merge[kSplits];
    EncodeLevelFn encode_level;
    DecodeLevelFn decode_level;
    FillSignSlotFn fill_sign_slot;  // this and the others for codec 2
    ReadSignSlotFn read_sign_slot;
    PredictRowFn predict_row;
};

static constexpr size_t level_bytes(uint32_t width, uint32_t n) noexcept {
    return static_cast<size_t>(width) * ((n + 7) / 8);
}

// The low `n` (0 to 64) bits set.
static inline uint64_t low_bits(uint32_t n) noexcept {
    return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
}

extern const LadderKernels kLadderScalar;
extern const LadderKernels kLadderAvx2;
extern const LadderKernels kLadderAvx2Softbits;
extern const LadderKernels kLadderSse42;
extern const LadderKernels kLadderNeon;

}  // namespace ogds
