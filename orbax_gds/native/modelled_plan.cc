#include "modelled_plan.h"

#include <algorithm>

#include "bytes.h"
#include "sampling.h"

namespace ogds {
namespace {

// Looking for low bits takes time in every sub-block: they must save a quarter of a bit a word.
constexpr uint32_t kMinTrim = 4;
constexpr uint32_t kGroupsOfSubBlock = 8;  // of the sample: they lie in 8,192 words of 1 MiB

uint32_t word_at(const uint8_t* words, size_t i, const Dtype& dtype) noexcept {
    return dtype.container_bytes == 2 ? load_u16le(words + 2 * i) : load_u32le(words + 4 * i);
}

// What the sample says of signs and low bits.
struct Rests {
    bool has_signs;
    uint64_t trimmed_bits;  // that the words of the sample would leave out
};

Rests look_at_rests(const ChunkWords& chunk, const Dtype& dtype) noexcept {
    const uint32_t most = max_trimmed_bits(dtype.split);
    uint32_t all = 0;
    uint8_t zero_bits[2 * kMaxGroups];
    uint32_t n_groups = 0;
    each_sampled_group(chunk.map, chunk.n_words, [&](uint32_t first, uint32_t n) {
        uint32_t some = 0;
        for (uint32_t i = first; i < first + n; ++i) {
            some |= word_at(chunk.words, i, dtype);
        }
        all |= some;
        zero_bits[n_groups++] = static_cast<uint8_t>(__builtin_ctz(some | 1u << most));
    });
    // What all words of a few neighbouring groups leave out a sub-block of some size can leave out.
    uint64_t trimmed_bits = 0;
    for (uint32_t group = 0; group < n_groups; group += kGroupsOfSubBlock) {
        const uint32_t n = std::min(kGroupsOfSubBlock, n_groups - group);
        trimmed_bits += uint64_t{n} * kGroupWords *
                        *std::min_element(zero_bits + group, zero_bits + group + n);
    }
    return {(all >> (dtype.bits - 1) & 1) != 0, trimmed_bits};
}

// Counts the exponents of the sample, less their rows' and columns' offsets. Those of 0 are not
// among them: returns their number.
uint32_t count_differences(const ChunkWords& chunk, const Dtype& dtype,
                           const Prediction& prediction, ExponentCounts& counts) noexcept {
    const uint32_t shift = split_bits(dtype.split).mantissa;
    const uint32_t mask = max_exponent(dtype.split);
    uint32_t zeros = 0;
    counts = {};
    counts.split = dtype.split;
    each_sampled_group(chunk.map, chunk.n_words, [&](uint32_t first, uint32_t n) {
        uint32_t row = first / prediction.columns;
        uint32_t column = first % prediction.columns;
        for (uint32_t i = first; i < first + n; ++i) {
            const uint32_t e = word_at(chunk.words, i, dtype) >> shift & mask;
            const uint32_t offset = prediction.of_row[row] + prediction.of_column[column];
            zeros += e == 0;
            counts.of[(e - offset) & mask] += e != 0;
            if (++column == prediction.columns) {
                column = 0;
                ++row;
            }
        }
        counts.total += n;
    });
    return zeros;
}

}  // namespace

bool plan_modelled(const ChunkWords& chunk, const Dtype& dtype, const ExponentCounts& counts,
                   bool always, uint8_t* offsets, ModelledPlan& plan) noexcept {
    const Rests rests = look_at_rests(chunk, dtype);
    const bool is_matrix = chunk.columns != 0 && offsets != nullptr && counts.total != 0;
    const bool predicts =
        is_matrix && (always || is_predictable(chunk.words, chunk.n_words, chunk.columns, dtype));
    plan = {};
    const bool sign_slot = !rests.has_signs;
    plan.tables.trims = always || rests.trimmed_bits * kMinTrim >= counts.total;
    if (!always && !predicts && !sign_slot && !plan.tables.trims) {
        return false;
    }
    ExponentCounts other = counts;
    other.of[0] = 0;
    plan.bits = static_cast<int64_t>(
        choose_modelled_tables(other, counts.of[0], plan.tables.ladder));
    if (predicts) {
        const Prediction prediction =
            fit_prediction(chunk.words, chunk.n_words, chunk.columns, dtype, offsets);
        const uint32_t zeros = count_differences(chunk, dtype, prediction, other);
        LadderTables tables;
        const uint64_t side_bits = 8 * offset_bytes(chunk.n_words, chunk.columns) *
                                   uint64_t{counts.total} / std::max(1u, chunk.n_normal_words);
        const auto bits =
            static_cast<int64_t>(choose_modelled_tables(other, zeros, tables) + side_bits);
        if (always || bits < plan.bits) {
            plan.tables.ladder = tables;
            plan.tables.prediction = prediction;
            plan.bits = bits;
        }
    }
    plan.tables.ladder.sign_slot = sign_slot;
    plan.bits -= sign_slot ? int64_t{counts.total} : 0;
    plan.bits -= plan.tables.trims ? static_cast<int64_t>(rests.trimmed_bits) : 0;
    return true;
}

}  // namespace ogds
