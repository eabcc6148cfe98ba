#include "delta_plan.h"

#include <algorithm>

#include "bytes.h"
#include "delta_sample.h"
#include "delta_words.h"

namespace ogds {
namespace {

constexpr uint32_t kSizes = 65;

// The most bits of a word that are below its symbol, low bytes included.
constexpr uint32_t kMostBelow = kMaxLowPlanes + 8 * kMaxLowBytes;

// Symbols of words by their value in the sample plus 8 for each bit less than kMostBelow that is
// below them.
class SymbolOf {
public:
    constexpr SymbolOf() noexcept : of_{} {
        for (uint32_t place = 0; place < kPlaces; ++place) {
            const uint32_t above = place < 8 * kMostBelow ? 0 : place / 8 - kMostBelow;
            of_[place] = static_cast<uint8_t>(
                above > 4 ? kEscapeSymbol : above == 0 ? 0 : (8 | place % 8) >> (4 - above));
        }
    }

    uint32_t operator()(uint32_t place) const noexcept { return of_[place]; }

private:
    static constexpr uint32_t kPlaces = 8 * (kSizes + kMostBelow);
    uint8_t of_[kPlaces];
};

constexpr SymbolOf kSymbolOf;

// The bits of a symbol in the levels.
void bits_of_symbols(const LadderTables& ladder, uint32_t (&bits)[16]) noexcept {
    for (uint32_t rank = 0; rank < 16; ++rank) {
        uint32_t of_rank = 0;
        uint32_t left = rank;
        for (uint32_t l = 0; l < ladder.n_levels; ++l) {
            const uint32_t most = (1u << ladder.widths[l]) - 1;
            of_rank += ladder.widths[l];
            if (left < most) {
                break;
            }
            left -= most;
        }
        bits[ladder.symbol_of_rank[rank]] = of_rank;
    }
}

// What a choice of the header costs.
struct Counted {
    uint32_t symbols[16] = {};
    uint32_t n = 0;
    uint64_t low_bits = 0;  // below the symbols
};

// What is to be added to the value of a word of the sample for its place in kSymbolOf, by the
// exponent of the base.
class PlaceOf {
public:
    PlaceOf(DeltaScale scale, const DeltaSample& sample) noexcept {
        // In 16 bits, of which a compiler takes several at once; bits_below says the same.
        const auto all = static_cast<int16_t>(8 * (kMostBelow - 8 * uint32_t{scale.low_bytes}));
        const int16_t shift = scale.shift;
        for (int16_t e = sample.first_exponent; e <= sample.last_exponent; ++e) {
            const auto k = static_cast<int16_t>(shift - (scale.exponents ? e : 0));
            const auto below = std::clamp<int16_t>(k, 0, kMaxLowPlanes);
            of_[e] = static_cast<uint16_t>(all - 8 * below);
        }
    }

    uint32_t operator()(uint32_t exponent) const noexcept { return of_[exponent]; }

    // The bits below the symbols of n words, given the sum of what is added.
    static uint64_t low_bits(uint32_t n, uint64_t added) noexcept {
        return (uint64_t{8 * kMostBelow} * n - added) / 8;
    }

private:
    uint16_t of_[256];
};

// Counts one of so many groups of the sample.
Counted count_symbols(const DeltaSample& sample, const DeltaTables& tables,
                      uint32_t one_in) noexcept {
    const PlaceOf place_of(scale_of(tables), sample);
    uint32_t symbols[4][16] = {};  // so that no count waits for the one before it
    Counted counted;
    uint64_t added = 0;
    const auto count = [&](uint32_t i, uint32_t table) {
        const uint32_t more = place_of(sample.exponents[i]);
        ++symbols[table][kSymbolOf(sample.values[i] + more)];
        added += more;
    };
    for (uint32_t first = 0; first < sample.n; first += one_in * kGroupWords) {
        const uint32_t end = std::min(sample.n, first + kGroupWords);
        uint32_t i = first;
        for (; i + 4 <= end; i += 4) {
            count(i, 0);
            count(i + 1, 1);
            count(i + 2, 2);
            count(i + 3, 3);
        }
        for (; i < end; ++i) {
            count(i, 0);
        }
        counted.n += end - first;
    }
    counted.low_bits = PlaceOf::low_bits(counted.n, added);
    for (uint32_t k = 0; k < 16; ++k) {
        counted.symbols[k] = symbols[0][k] + symbols[1][k] + symbols[2][k] + symbols[3][k];
    }
    return counted;
}

// The value that half of the changed words of a part of the sample are below.
uint32_t middle_of(const DeltaSample& sample, bool exponents, uint32_t begin,
                   uint32_t end) noexcept {
    uint32_t counts[256 + kSizes] = {};
    uint32_t n = 0;
    for (uint32_t i = begin; i < end; ++i) {
        if (sample.values[i] != 0) {
            ++counts[sample.values[i] / 8 + (exponents ? sample.exponents[i] : 0u)];
            ++n;
        }
    }
    uint32_t value = 0;
    for (uint32_t below = 0; below + counts[value] < (n + 1) / 2; ++value) {
        below += counts[value];
    }
    return value;
}

// Looks for the header that takes the fewest bits by what a part of the sample takes.
class Search {
public:
    Search(const DeltaSample& sample, const Dtype& dtype) noexcept
        : sample_(sample), dtype_(dtype) {}

    void run() noexcept {
        consider(false, 0, 0);  // few words have changed, by much
        from_middle(has_delta_exponents(dtype_.split));
    }

    const DeltaTables& best() const noexcept { return best_; }

private:
    static constexpr uint32_t kOneGroupIn = 2;
    static constexpr uint32_t kAbove = 3;  // bits of most words that are in the symbols

    // The bits it takes; `shift` is that of z.
    uint64_t consider(bool exponents, uint32_t low_bytes, int32_t shift) noexcept {
        const int32_t most = exponents ? 255 : static_cast<int32_t>(kMaxLowPlanes);
        const int32_t of_y = shift - 8 * static_cast<int32_t>(low_bytes);
        DeltaTables tables;
        tables.exponents = exponents;
        tables.low_bytes = static_cast<uint8_t>(low_bytes);
        tables.ladder.emax = static_cast<uint16_t>(std::clamp(of_y, 0, most));
        const Counted counted = count_symbols(sample_, tables, kOneGroupIn);
        const uint64_t bits =
            counted.low_bits + choose_symbol_levels(counted.symbols,
                                                    dtype_.container_bytes - low_bytes,
                                                    tables.ladder);
        if (bits < bits_) {
            bits_ = bits;
            best_ = tables;
        }
        return bits;
    }

    void from_middle(bool exponents) noexcept {
        const auto start =
            static_cast<int32_t>(middle_of(sample_, exponents, 0, sample_.n)) -
            static_cast<int32_t>(kAbove);
        uint32_t low_bytes = 0;
        uint64_t least = ~uint64_t{0};
        for (uint32_t f = 0; f <= max_low_bytes(dtype_); ++f) {
            if (const uint64_t bits = consider(exponents, f, start); bits < least) {
                least = bits;
                low_bytes = f;
            }
        }
        for (const int32_t step : {1, -1}) {
            int32_t shift = start;
            for (uint64_t bits = consider(exponents, low_bytes, shift + step); bits < least;) {
                least = bits;
                shift += step;
                bits = consider(exponents, low_bytes, shift + step);
            }
            if (shift != start) {
                return;  // it was the right way
            }
        }
    }

    const DeltaSample& sample_;
    const Dtype& dtype_;
    DeltaTables best_;
    uint64_t bits_ = ~uint64_t{0};
};

// Chooses the scales of the sub-blocks, beside that of the chunk, by what the symbols of the
// chunk's levels take.
class Scales {
public:
    Scales(const DeltaSample& sample, const Dtype& dtype, const DeltaTables& chunk) noexcept
        : sample_(sample), dtype_(dtype), chunk_(scale_of(chunk)) {
        bits_of_symbols(chunk.ladder, bits_of_);
    }

    // False if they are not worth it.
    bool choose(DeltaPlan& plan) noexcept {
        uint64_t of_chunk = 0;
        uint64_t of_own = 0;
        uint32_t begin = 0;
        plan.n_scales = sample_.n_scales;
        for (uint32_t i = 0; i < sample_.n_scales; ++i) {
            begin_ = begin;
            end_ = sample_.ends[i];
            begin = end_;
            best_bits_ = ~uint64_t{0};
            consider(chunk_);
            of_chunk += best_bits_;
            look();
            of_own += best_bits_;
            plan.scales[i] = best_;
        }
        return of_own + of_own / kWorth < of_chunk;
    }

private:
    static constexpr uint32_t kWorth = 32;
    static constexpr int32_t kAbove = 3;

    void look() noexcept {
        if (begin_ == end_) {
            return;
        }
        const bool exponents = has_delta_exponents(dtype_.split);
        consider({});
        const int32_t start = static_cast<int32_t>(middle_of(sample_, exponents, begin_, end_));
        for (uint32_t f = 0; f <= max_low_bytes(dtype_); ++f) {
            consider(at(exponents, f, start - kAbove));
        }
    }

    DeltaScale at(bool exponents, uint32_t low_bytes, int32_t shift) const noexcept {
        const int32_t most = exponents ? 255 : static_cast<int32_t>(kMaxLowPlanes);
        const int32_t of_y = shift - 8 * static_cast<int32_t>(low_bytes);
        return {static_cast<uint8_t>(std::clamp(of_y, 0, most)), static_cast<uint8_t>(low_bytes),
                exponents};
    }

    void consider(DeltaScale scale) noexcept {
        const PlaceOf place_of(scale, sample_);
        const uint32_t of_escape = 8 * (dtype_.container_bytes - uint32_t{scale.low_bytes});
        uint32_t bits_of[16];
        std::copy_n(bits_of_, 16, bits_of);
        bits_of[kEscapeSymbol] += of_escape;
        uint64_t added = 0;
        uint64_t bits = 0;
        for (uint32_t i = begin_; i < end_; ++i) {
            const uint32_t more = place_of(sample_.exponents[i]);
            bits += bits_of[kSymbolOf(sample_.values[i] + more)];
            added += more;
        }
        bits += PlaceOf::low_bits(end_ - begin_, added);
        if (bits < best_bits_) {
            best_bits_ = bits;
            best_ = scale;
        }
    }

    const DeltaSample& sample_;
    const Dtype& dtype_;
    const DeltaScale chunk_;
    uint32_t bits_of_[16];
    uint32_t begin_ = 0;
    uint32_t end_ = 0;
    DeltaScale best_;
    uint64_t best_bits_ = 0;
};

// The sample as the plan codes it.
struct Coded {
    uint8_t symbols[DeltaSample::kMost];
    uint32_t counts[16] = {};
    uint64_t other_bits = 0;  // below the symbols, and of escapes
};

void code_sample(const DeltaSample& sample, const Dtype& dtype, const DeltaPlan& plan,
                 Coded& coded) noexcept {
    const bool has_scales = plan.tables.has_scales;
    uint32_t i = 0;
    for (uint32_t s = 0; s < (has_scales ? plan.n_scales : 1u); ++s) {
        const DeltaScale scale = has_scales ? plan.scales[s] : scale_of(plan.tables);
        const PlaceOf place_of(scale, sample);
        const uint32_t begin = i;
        uint64_t added = 0;
        uint32_t n_escapes = 0;
        for (const uint32_t end = has_scales ? sample.ends[s] : sample.n; i < end; ++i) {
            const uint32_t more = place_of(sample.exponents[i]);
            const uint32_t symbol = kSymbolOf(sample.values[i] + more);
            coded.symbols[i] = static_cast<uint8_t>(symbol);
            ++coded.counts[symbol];
            added += more;
            n_escapes += symbol == kEscapeSymbol ? 1 : 0;
        }
        coded.other_bits += PlaceOf::low_bits(i - begin, added) +
                            8 * uint64_t{n_escapes} *
                                (dtype.container_bytes - uint32_t{scale.low_bytes});
    }
}

// Bytes of eight words each, a bit set where the symbol is not the most frequent one: as they occur
// in the sample, and as if the bits were independent.
void count_bytes(const uint8_t* symbols, uint32_t n, uint32_t most_frequent,
                 uint32_t (&occurrences)[kHuffmanBytes]) noexcept {
    constexpr uint32_t kOne = 1u << 16;
    constexpr uint32_t kEach = 1u << 20;
    const uint32_t n_bytes = std::max(1u, n / 8);
    uint32_t n_set = 0;
    uint32_t seen[kHuffmanBytes] = {};
    for (uint32_t i = 0; i < n; ++i) {
        const bool is_set = symbols[i] != most_frequent;
        n_set += is_set ? 1 : 0;
        occurrences[0] = i % 8 == 0 ? 0 : occurrences[0] >> 1;
        occurrences[0] |= is_set ? 0x80u : 0;
        if (i % 8 == 7) {
            ++seen[occurrences[0]];
        }
    }
    const uint64_t set = std::clamp<uint64_t>(uint64_t{n_set} * kOne / n, 1, kOne - 1);
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
uint64_t choose_coding(const Coded& coded, uint32_t n, uint64_t plain_bits, uint32_t n_words,
                       DeltaPlan& plan) noexcept {
    // Below, the entropy of the bitmap is nearly its length.
    constexpr uint32_t kLeastShare = 5;  // eighths
    const uint32_t most_frequent = plan.tables.ladder.symbol_of_rank[0];
    if (coded.counts[most_frequent] * uint64_t{8} < n * uint64_t{kLeastShare}) {
        return plain_bits;
    }
    uint32_t occurrences[kHuffmanBytes] = {};
    count_bytes(coded.symbols, n, most_frequent, occurrences);
    HuffmanLengths lengths;
    fit_lengths(occurrences, lengths);
    uint64_t weighted = 0;
    uint64_t all = 0;
    for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
        weighted += uint64_t{occurrences[y]} * lengths.of[y];
        all += occurrences[y];
    }
    const uint64_t bitmap_bits = weighted * n / (8 * all);
    const uint64_t side_bits = 8 * uint64_t{kHuffmanHeaderBytes} * n / n_words;
    LadderTables other = plan.tables.ladder;
    const uint64_t bits = choose_levels_after(coded.counts, 0, other) + bitmap_bits + side_bits;
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
    DeltaSample sample;
    const uint16_t decay = find_decay(chunk, dtype);
    take_sample(chunk, dtype, decay, sample);
    plan = {};
    if (sample.n == 0) {
        uint32_t symbols[16] = {};
        choose_symbol_levels(symbols, 1, plan.tables.ladder);
        return {};
    }
    Search search(sample, dtype);
    search.run();
    plan.tables = search.best();
    plan.tables.decay = decay;
    Scales scales(sample, dtype, plan.tables);
    if (sample.n_scales > 1 && scales.choose(plan)) {
        plan.tables.has_scales = true;
        set_scale(plan.tables, {});
    }
    Coded coded;
    code_sample(sample, dtype, plan, coded);
    uint64_t bits = choose_symbol_levels(coded.counts, 0, plan.tables.ladder);
    bits = choose_coding(coded, sample.n, bits, chunk.n_normal_words, plan);
    const uint64_t head_bits = 8 * (2 * uint64_t{kMaxLowPlanes} + 24);
    const uint64_t heads = head_bits * sample.n / std::min(chunk.n_normal_words, kSubBlockWords);
    return {bits + coded.other_bits + heads, sample.n};
}

}  // namespace ogds
