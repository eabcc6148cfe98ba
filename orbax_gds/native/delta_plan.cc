#include "delta_plan.h"

#include <algorithm>

#include "bytes.h"
#include "delta_words.h"
#include "isa.h"
#include "sampling.h"

namespace ogds {
namespace {

// Of many words fewer groups than are sampled elsewhere say enough; chosen: so many, or one of so
// many words where that is more.
constexpr uint32_t kEnoughGroups = 64;
constexpr uint32_t kWordsAGroup = 8192;
constexpr uint32_t kMostSampled = 2 * kMaxGroups * kGroupWords;
constexpr uint32_t kSizes = 65;

// Words of the sample in their order: bits of z, its upper four from the first that is set on, and
// exponent of the base.
struct Sample {
    uint32_t n = 0;
    uint8_t sizes[kMostSampled];
    uint8_t tops[kMostSampled];
    uint8_t exponents[kMostSampled];
};

// Of the words that are sampled, those of every group that tell whether they have decayed.
struct Decay {
    static constexpr uint32_t kOfGroup = 8;
    uint32_t n = 0;
    uint32_t words[kMostSampled / kGroupWords * kOfGroup];
    uint32_t base[kMostSampled / kGroupWords * kOfGroup];
};

uint32_t size_of(uint32_t word, uint32_t base) noexcept {
    using D = DeltaOf<uint32_t>;
    return 32 - static_cast<uint32_t>(
                    __builtin_clz(D::difference(word, base, 0, 0x7FFFFFFF) | 1));
}

// The decay that half of the words are above, if differences are that much smaller with it.
uint16_t choose_decay(const Decay& sample) noexcept {
    constexpr uint32_t kLeast = 64;         // words; fewer say nothing
    constexpr uint32_t kOneBitIn = 4;       // words, that it saves at the least
    static_assert(sizeof sample.words / sizeof sample.words[0] <= kMostSampled);
    int32_t decays[sizeof sample.words / sizeof sample.words[0]];
    for (uint32_t i = 0; i < sample.n; ++i) {
        const uint32_t lost = (sample.base[i] & 0x7FFFFFFF) - (sample.words[i] & 0x7FFFFFFF);
        const uint32_t mantissa = 1u << 23 | (sample.base[i] & 0x7FFFFF);
        const int64_t decay = int64_t{static_cast<int32_t>(lost)} * (1 << 24) / mantissa;
        decays[i] = static_cast<int32_t>(std::clamp<int64_t>(decay, -1, kMaxDecay + 1));
    }
    if (sample.n < kLeast) {
        return 0;
    }
    int32_t* const middle = decays + sample.n / 2;
    std::nth_element(decays, middle, decays + sample.n);
    if (*middle < 1 || *middle > static_cast<int32_t>(kMaxDecay)) {
        return 0;
    }
    const auto decay = static_cast<uint32_t>(*middle);
    int64_t saved = 0;
    for (uint32_t i = 0; i < sample.n; ++i) {
        saved += size_of(sample.words[i], sample.base[i]);
        saved -= size_of(sample.words[i], decayed(sample.base[i], decay));
    }
    return saved * kOneBitIn > sample.n ? static_cast<uint16_t>(decay) : 0;
}

template <class Word>
void add_words(const uint8_t* words, const uint8_t* base, uint32_t n, const DeltaFormat& format,
               Sample& sample) noexcept {
    using D = DeltaOf<Word>;
    for (uint32_t i = 0; i < n; ++i) {
        const Word b = D::load(base, i);
        const uint64_t z =
            D::difference(D::load(words, i), b, format.shift, static_cast<Word>(format.flip));
        const auto zeros = static_cast<uint32_t>(__builtin_clzll(z | 1));
        sample.sizes[sample.n] = static_cast<uint8_t>(z == 0 ? 0 : 64 - zeros);
        sample.tops[sample.n] = static_cast<uint8_t>(z << zeros >> 60);
        sample.exponents[sample.n++] = exponent_of(b, format);
    }
}

// Calls use(first, n) for groups of the sample.
template <class Use>
void each_group(const ChunkWords& chunk, const Dtype& dtype, Use use) noexcept {
    const size_t word_bytes = dtype.container_bytes;
    const auto ahead = [&](uint32_t first) {
        for (size_t line = 0; line < kGroupWords * word_bytes; line += 64) {
            __builtin_prefetch(chunk.words + first * word_bytes + line);
            __builtin_prefetch(chunk.base + first * word_bytes + line);
        }
    };
    uint32_t n_groups = 0;
    each_sampled_group(chunk.map, chunk.n_words, [&](uint32_t, uint32_t) { ++n_groups; });
    const uint32_t enough = std::max(kEnoughGroups, chunk.n_normal_words / kWordsAGroup);
    const uint32_t one_in = std::max(1u, n_groups / enough);
    uint32_t n_calls = 0;
    each_sampled_group(
        chunk.map, chunk.n_words,
        [&](uint32_t first, uint32_t n) {
            if (n_calls++ % one_in == 0) {
                use(first, n);
            }
        },
        ahead);
}

uint16_t find_decay(const ChunkWords& chunk, const Dtype& dtype) noexcept {
    using D = DeltaOf<uint32_t>;
    if (!may_decay(dtype)) {
        return 0;
    }
    Decay sample;
    each_group(chunk, dtype, [&](uint32_t first, uint32_t n) {
        for (uint32_t i = 0; i < std::min(n, Decay::kOfGroup); ++i) {
            sample.words[sample.n] = D::load(chunk.words, first + i);
            sample.base[sample.n++] = D::load(chunk.base, first + i);
        }
    });
    return choose_decay(sample);
}

void take_sample(const ChunkWords& chunk, const Dtype& dtype, uint32_t decay,
                 Sample& sample) noexcept {
    const DeltaFormat format = delta_format(dtype);
    const size_t word_bytes = dtype.container_bytes;
    each_group(chunk, dtype, [&](uint32_t first, uint32_t n) {
        const uint8_t* words = chunk.words + first * word_bytes;
        const uint8_t* base = chunk.base + first * word_bytes;
        uint8_t left[kGroupWords * sizeof(uint32_t)];
        if (decay != 0) {
            kernels().delta->decay(base, n, decay, left);
            base = left;
        }
        switch (word_bytes) {
            case 1: return add_words<uint8_t>(words, base, n, format, sample);
            case 2: return add_words<uint16_t>(words, base, n, format, sample);
            case 4: return add_words<uint32_t>(words, base, n, format, sample);
            default: return add_words<uint64_t>(words, base, n, format, sample);
        }
    });
}

// The symbol of a word given its size and upper bits, by how many bits of it are above those below.
class SymbolOf {
public:
    constexpr SymbolOf() noexcept : of_{} {
        for (uint32_t above = 0; above <= kMost; ++above) {
            for (uint32_t top = 0; top < 16; ++top) {
                of_[above][top] = static_cast<uint8_t>(
                    above == kMost ? kEscapeSymbol : above == 0 ? 0 : top >> (4 - above));
            }
        }
    }

    uint32_t operator()(uint32_t size, uint32_t below, uint32_t top) const noexcept {
        const uint32_t above = size > below ? size - below : 0;
        return of_[above < kMost ? above : kMost][top];
    }

private:
    static constexpr uint32_t kMost = 5;  // of 16 and more
    uint8_t of_[kMost + 1][16];
};

constexpr SymbolOf kSymbolOf;

// What a choice of the header costs.
struct Counted {
    uint32_t symbols[16] = {};
    uint32_t n = 0;
    uint64_t low_bits = 0;  // below the symbols
};

// Counts one of so many groups of the sample.
Counted count_symbols(const Sample& sample, const DeltaTables& tables, uint32_t one_in) noexcept {
    uint8_t below_of[256];
    for (uint32_t e = 0; e < 256; ++e) {
        below_of[e] = static_cast<uint8_t>(bits_below(e, tables) + 8u * tables.low_bytes);
    }
    uint32_t symbols[4][16] = {};  // so that no count waits for the one before it
    Counted counted;
    for (uint32_t first = 0; first < sample.n; first += one_in * kGroupWords) {
        const uint32_t end = std::min(sample.n, first + kGroupWords);
        for (uint32_t i = first; i < end; ++i) {
            const uint32_t below = below_of[sample.exponents[i]];
            ++symbols[i % 4][kSymbolOf(sample.sizes[i], below, sample.tops[i])];
            counted.low_bits += below;
        }
        counted.n += end - first;
    }
    for (uint32_t k = 0; k < 16; ++k) {
        counted.symbols[k] = symbols[0][k] + symbols[1][k] + symbols[2][k] + symbols[3][k];
    }
    return counted;
}

// The value that half of the changed words of the sample are below.
uint32_t middle_of(const Sample& sample, bool exponents) noexcept {
    uint32_t counts[256 + kSizes] = {};
    uint32_t n = 0;
    for (uint32_t i = 0; i < sample.n; ++i) {
        if (sample.sizes[i] != 0) {
            ++counts[sample.sizes[i] + (exponents ? sample.exponents[i] : 0u)];
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
    Search(const Sample& sample, const Dtype& dtype) noexcept
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
            static_cast<int32_t>(middle_of(sample_, exponents)) - static_cast<int32_t>(kAbove);
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

    const Sample& sample_;
    const Dtype& dtype_;
    DeltaTables best_;
    uint64_t bits_ = ~uint64_t{0};
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
        const uint32_t below = bits_below(sample.exponents[i], tables) + 8u * tables.low_bytes;
        const uint32_t symbol = kSymbolOf(sample.sizes[i], below, sample.tops[i]);
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
                       uint32_t n_words, uint32_t escape_bytes, DeltaPlan& plan) noexcept {
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
        choose_levels_after(symbols, escape_bytes, other) + bitmap_bits + side_bits;
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
    const Counted counted = count_symbols(sample, plan.tables, 1);
    const uint32_t escape_bytes = dtype.container_bytes - uint32_t{plan.tables.low_bytes};
    uint64_t bits = choose_symbol_levels(counted.symbols, escape_bytes, plan.tables.ladder);
    bits = choose_coding(sample, counted.symbols, bits, chunk.n_normal_words, escape_bytes, plan);
    const uint64_t head_bits = 8 * (2 * uint64_t{kMaxLowPlanes} + 24);
    const uint64_t heads = head_bits * sample.n / std::min(chunk.n_normal_words, kSubBlockWords);
    return {bits + counted.low_bits + heads, sample.n};
}

}  // namespace ogds
