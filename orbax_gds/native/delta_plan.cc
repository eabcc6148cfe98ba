#include "delta_plan.h"

#include <algorithm>

#include "bytes.h"
#include "delta_words.h"
#include "sampling.h"

namespace ogds {
namespace {

constexpr uint32_t kMostSampled = 2 * kMaxGroups * kGroupWords;
constexpr uint32_t kClasses = 65;
constexpr uint32_t kFloors = 14;     // larger ones expect nothing
constexpr uint32_t kFloorSteps = 3;  // that are tried, and those beside the best

// Words of the sample in their order: class, and exponent of the base.
struct Sample {
    uint32_t n = 0;
    uint64_t low_bits = 0;  // below their classes, and low bytes
    uint32_t largest = 0;
    uint32_t n_short[kMaxLowBytes + 1] = {};  // words that have nothing above so many bytes
    uint8_t classes[kMostSampled];
    uint8_t exponents[kMostSampled];
};

template <class Word>
void add_words(const uint8_t* words, const uint8_t* base, uint32_t n, const DeltaFormat& format,
               Sample& sample) noexcept {
    using D = DeltaOf<Word>;
    for (uint32_t i = 0; i < n; ++i) {
        const Word b = D::load(base, i);
        const uint64_t z =
            D::difference(D::load(words, i), b, format.shift, static_cast<Word>(format.flip));
        const uint32_t c = z == 0 ? 0 : 64 - static_cast<uint32_t>(__builtin_clzll(z));
        sample.classes[sample.n] = static_cast<uint8_t>(c);
        sample.exponents[sample.n++] =
            static_cast<uint8_t>(static_cast<uint8_t>(b >> format.exponent_shift) &
                                 format.exponent_mask);
        sample.low_bits += c > 1 ? c - 1 : 0;
        sample.largest = std::max(sample.largest, c);
        for (uint32_t k = 1; k <= kMaxLowBytes; ++k) {
            sample.n_short[k] += c <= 8 * k ? 1 : 0;
        }
    }
}

void take_sample(const ChunkWords& chunk, const Dtype& dtype, Sample& sample) noexcept {
    const DeltaFormat format = delta_format(dtype);
    const size_t word_bytes = dtype.container_bytes;
    const auto ahead = [&](uint32_t first) {
        for (size_t line = 0; line < kGroupWords * word_bytes; line += 64) {
            __builtin_prefetch(chunk.words + first * word_bytes + line);
            __builtin_prefetch(chunk.base + first * word_bytes + line);
        }
    };
    const auto add = [&](uint32_t first, uint32_t n) {
        const uint8_t* words = chunk.words + first * word_bytes;
        const uint8_t* base = chunk.base + first * word_bytes;
        switch (word_bytes) {
            case 1: return add_words<uint8_t>(words, base, n, format, sample);
            case 2: return add_words<uint16_t>(words, base, n, format, sample);
            case 4: return add_words<uint32_t>(words, base, n, format, sample);
            default: return add_words<uint64_t>(words, base, n, format, sample);
        }
    };
    each_sampled_group(chunk.map, chunk.n_words, add, ahead);
}

// Planes of which nearly every word has a bit take more time than bytes, and as many bits: as low
// bytes are left out as long as few words have nothing above them. The classes are then those of
// what is above.
uint8_t leave_out_low_bytes(const Dtype& dtype, Sample& sample) noexcept {
    constexpr uint32_t kFew = 7;  // one word in so many: measured on fp32 weights, 0.4 % longer
    uint32_t low_bytes = 0;
    while (low_bytes < max_low_bytes(dtype) &&
           sample.n_short[low_bytes + 1] <= sample.n / kFew) {
        ++low_bytes;
    }
    if (low_bytes == 0) {
        return 0;
    }
    sample.low_bits = uint64_t{8} * low_bytes * sample.n;
    sample.largest = sample.largest > 8 * low_bytes ? sample.largest - 8 * low_bytes : 0;
    for (uint32_t i = 0; i < sample.n; ++i) {
        uint8_t& c = sample.classes[i];
        c = c > 8 * low_bytes ? static_cast<uint8_t>(c - 8 * low_bytes) : uint8_t{0};
        sample.low_bits += c > 1 ? c - 1u : 0u;
    }
    return static_cast<uint8_t>(low_bytes);
}

// How often exponent and class occur together, without the unchanged words.
struct Cell {
    uint8_t exponent;
    uint8_t c;
    uint32_t n;
};

struct Cells {
    Cell of[kMostSampled];
    uint32_t n = 0;
    uint32_t n_unchanged = 0;

    explicit Cells(const Sample& sample) noexcept {
        uint16_t joint[256][kClasses] = {};
        for (uint32_t i = 0; i < sample.n; ++i) {
            ++joint[sample.exponents[i]][sample.classes[i]];
        }
        for (uint32_t e = 0; e < 256; ++e) {
            n_unchanged += joint[e][0];
            for (uint32_t c = 1; c <= sample.largest; ++c) {
                if (joint[e][c] != 0) {
                    of[n++] = {static_cast<uint8_t>(e), static_cast<uint8_t>(c), joint[e][c]};
                }
            }
        }
    }

    // The largest of the 14 neighbouring values, `of_cell` of each, that most words have.
    template <class Of>
    uint32_t choose_emax(Of of_cell) const noexcept {
        uint32_t counts[256 + kClasses] = {};
        for (uint32_t i = 0; i < n; ++i) {
            counts[of_cell(of[i])] += of[i].n;
        }
        uint32_t inside = 0;
        uint32_t best = 0;
        uint32_t emax = kZeroSymbol - 1;
        for (uint32_t value = 0; value < 256; ++value) {
            inside += counts[value] - (value >= kZeroSymbol ? counts[value - kZeroSymbol] : 0);
            if (inside > best) {
                best = inside;
                emax = value;
            }
        }
        return emax;
    }

    void count_symbols(const DeltaTables& tables, uint32_t (&symbols)[16]) const noexcept {
        std::fill_n(symbols, 16, 0u);
        symbols[kZeroSymbol] = n_unchanged;
        for (uint32_t i = 0; i < n; ++i) {
            const auto distance =
                static_cast<uint8_t>(expected_class(of[i].exponent, tables) - of[i].c);
            symbols[std::min<uint32_t>(distance, kZeroSymbol) +
                    (distance < kZeroSymbol ? 0u : 1u)] += of[i].n;
        }
    }
};

// Bytes of eight words each, a bit set where the symbol is not the most frequent one: as they occur
// in the sample, and as if the bits were independent.
void count_bytes(const Sample& sample, const DeltaTables& tables,
                 uint32_t (&occurrences)[kHuffmanBytes]) noexcept {
    constexpr uint32_t kOne = 1u << 16;
    constexpr uint32_t kEach = 1u << 20;
    const uint32_t n_bytes = std::max(1u, sample.n / 8);
    uint32_t n_set = 0;
    uint32_t seen[kHuffmanBytes] = {};
    for (uint32_t i = 0; i < sample.n; ++i) {
        const uint8_t c = sample.classes[i];
        const auto distance =
            static_cast<uint8_t>(expected_class(sample.exponents[i], tables) - c);
        const uint32_t near = distance < kZeroSymbol ? distance : kEscapeSymbol;
        const uint32_t symbol = c == 0 ? kZeroSymbol : near;
        const bool is_set = symbol != tables.ladder.symbol_of_rank[0];
        n_set += is_set ? 1 : 0;
        occurrences[0] = i % 8 == 0 ? 0 : occurrences[0] >> 1;
        occurrences[0] |= is_set ? 0x80u : 0;
        if (i % 8 == 7) {
            ++seen[occurrences[0]];
        }
    }
    const uint64_t set = std::clamp<uint64_t>(uint64_t{n_set} * kOne / sample.n, 1, kOne - 1);
    for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
        uint64_t share = kEach;
        for (uint32_t bit = 0; bit < 8; ++bit) {
            share = share * ((y >> bit & 1) != 0 ? set : kOne - set) / kOne;
        }
        occurrences[y] = static_cast<uint32_t>(share) + 1 + seen[y] * (kEach / n_bytes);
    }
}

// Codes the first bitmap if that saves more than the lengths take. `symbols` are those that the
// plan's tables count; returns the bits of levels.
uint64_t choose_coding(const Sample& sample, const uint32_t (&symbols)[16], uint64_t plain_bits,
                       uint32_t n_words, DeltaPlan& plan) noexcept {
    // Below, the entropy of the bitmap is nearly its length.
    constexpr uint32_t kLeastShare = 5;  // eighths
    const uint32_t first = symbols[plan.tables.ladder.symbol_of_rank[0]];
    if (first * uint64_t{8} < sample.n * uint64_t{kLeastShare}) {
        return plain_bits;
    }
    uint32_t occurrences[kHuffmanBytes] = {};
    count_bytes(sample, plan.tables, occurrences);
    HuffmanLengths lengths;
    fit_lengths(occurrences, lengths);
    uint64_t weighted = 0;
    uint64_t all = 0;
    for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
        weighted += uint64_t{occurrences[y]} * lengths.of[y];
        all += occurrences[y];
    }
    const uint64_t bitmap_bits = weighted * sample.n / (8 * all);
    const uint64_t side_bits = 8 * uint64_t{kHuffmanHeaderBytes} * sample.n / n_words;
    LadderTables other = plan.tables.ladder;
    const uint64_t bits =
        choose_levels_after(symbols, other) + bitmap_bits + side_bits;
    if (bits >= plain_bits) {
        return plain_bits;
    }
    plan.tables.ladder = other;
    plan.tables.has_lengths = true;
    plan.lengths = lengths;
    return bits;
}

}  // namespace

DeltaEstimate plan_delta(const ChunkWords& chunk, const Dtype& dtype, DeltaPlan& plan) noexcept {
    Sample sample;
    take_sample(chunk, dtype, sample);
    plan = {};
    if (sample.n == 0) {
        uint32_t symbols[16] = {};
        choose_symbol_levels(symbols, 1, plan.tables.ladder);
        return {};
    }
    const uint8_t low_bytes = leave_out_low_bytes(dtype, sample);
    const Cells cells(sample);
    uint64_t best = ~uint64_t{0};
    uint32_t best_symbols[16] = {};
    const auto consider = [&](bool exponents, uint32_t emax, uint32_t floor) {
        DeltaTables tables;
        tables.exponents = exponents;
        tables.low_bytes = low_bytes;
        tables.floor = static_cast<uint8_t>(floor);
        tables.ladder.emax = static_cast<uint16_t>(emax);
        uint32_t symbols[16];
        cells.count_symbols(tables, symbols);
        const uint64_t bits = choose_symbol_levels(symbols, 1, tables.ladder);
        if (bits < best) {
            best = bits;
            plan.tables = tables;
            std::copy_n(symbols, 16, best_symbols);
        }
    };
    consider(false, cells.choose_emax([](const Cell& cell) { return uint32_t{cell.c}; }), 0);
    if (has_delta_exponents(dtype.split)) {
        const uint32_t emax =
            cells.choose_emax([](const Cell& cell) { return uint32_t{cell.c} + cell.exponent; });
        for (uint32_t floor = 0; floor < kFloors; floor += kFloorSteps) {
            consider(true, emax, floor);
        }
        const uint32_t near = plan.tables.floor;
        if (plan.tables.exponents && near > 0) {
            consider(true, emax, near - 1);
            consider(true, emax, near + 1);
        }
    }
    best = choose_coding(sample, best_symbols, best, chunk.n_normal_words, plan);
    const uint64_t head_bits = 8 * (3 * uint64_t{sample.largest} + 24);
    const uint64_t heads = head_bits * sample.n / std::min(chunk.n_normal_words, kSubBlockWords);
    return {best + sample.low_bits + heads, sample.n};
}

}  // namespace ogds
