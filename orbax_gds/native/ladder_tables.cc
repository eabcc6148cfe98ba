#include "ladder_tables.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"
#include "sampling.h"

namespace ogds {
namespace {

// Four tables, so that equal neighbours do not wait for each other's increment.
class Histogram {
public:
    explicit Histogram(const Dtype& dtype) noexcept : dtype_(dtype) {
        for (auto& counts : counts_) {
            std::fill_n(counts, max_exponent(dtype.split) + 1, 0);
        }
    }

    void add(const uint8_t* words, uint32_t first, uint32_t n) noexcept {
        words += size_t{first} * dtype_.container_bytes;
        switch (dtype_.container_bytes) {
            case 1: return add_words<1>(words, n);
            case 2: return add_words<2>(words, n);
            case 4: return add_words<4>(words, n);
            default: return add_words<8>(words, n);
        }
    }

    void sum(ExponentCounts& counts) const noexcept {
        counts.split = dtype_.split;
        counts.total = 0;
        for (uint32_t e = 0; e <= max_exponent(dtype_.split); ++e) {
            counts.of[e] = counts_[0][e] + counts_[1][e] + counts_[2][e] + counts_[3][e];
            counts.total += counts.of[e];
        }
    }

private:
    template <uint32_t kWordBytes>
    void add_words(const uint8_t* words, uint32_t n) noexcept {
        const uint32_t mantissa_bits = split_bits(dtype_.split).mantissa;
        const uint32_t mask = max_exponent(dtype_.split);
        for (uint32_t i = 0; i < n; ++i) {
            const uint64_t word = load_partial_u64le(words + kWordBytes * i, kWordBytes);
            ++counts_[i % 4][static_cast<uint32_t>(word >> mantissa_bits) & mask];
        }
    }

    const Dtype& dtype_;
    uint32_t counts_[4][kMaxExponents];  // up to the largest of the split
};

// The largest exponent of the 15 consecutive ones that hold the most words. Windows wrap around
// where they are nearly everything: then it is one exponent that is left out.
uint16_t choose_emax(const ExponentCounts& counts) noexcept {
    const uint32_t n_exponents = max_exponent(counts.split) + 1;
    if (n_exponents <= kEscapeSymbol) {
        return static_cast<uint16_t>(n_exponents - 1);
    }
    uint32_t inside = 0;
    for (uint32_t e = 0; e < kEscapeSymbol; ++e) {
        inside += counts.of[e];
    }
    uint32_t best = inside;
    uint32_t emax = kEscapeSymbol - 1;
    const uint32_t last = n_exponents == 16 ? n_exponents + kEscapeSymbol - 2 : n_exponents - 1;
    for (uint32_t e = kEscapeSymbol; e <= last; ++e) {
        inside += counts.of[e % n_exponents] - counts.of[e - kEscapeSymbol];
        if (inside > best) {
            best = inside;
            emax = e % n_exponents;
        }
    }
    return static_cast<uint16_t>(emax);
}

// How often each symbol occurs.
struct SymbolCounts {
    uint32_t of[16] = {};
};

SymbolCounts count_symbols(const ExponentCounts& counts, uint32_t emax) noexcept {
    const uint32_t mask = max_exponent(counts.split);
    SymbolCounts symbols;
    symbols.of[kEscapeSymbol] = counts.total;
    for (uint32_t k = 0; k < kEscapeSymbol && k <= mask; ++k) {
        symbols.of[k] = counts.of[(emax - k) & mask];
        symbols.of[kEscapeSymbol] -= symbols.of[k];
    }
    return symbols;
}

// Sorts the symbols by falling count, equal ones by number; returns the counts in that order.
void rank_symbols(const SymbolCounts& symbols, LadderTables& tables,
                  uint32_t (&count_of_rank)[16]) noexcept {
    for (uint8_t k = 0; k < 16; ++k) {
        uint32_t at = k;
        for (; at > 0 && count_of_rank[at - 1] < symbols.of[k]; --at) {
            count_of_rank[at] = count_of_rank[at - 1];
            tables.symbol_of_rank[at] = tables.symbol_of_rank[at - 1];
        }
        count_of_rank[at] = symbols.of[k];
        tables.symbol_of_rank[at] = k;
    }
}

// The cheapest widths from rank r on, for every r, with at most so many levels.
struct Plan {
    uint64_t bits;
    uint8_t width;
};

// Chooses the widths by dynamic programming; returns the bits they take. With is_first_free the
// first is 1 and takes none.
uint64_t choose_widths(const uint32_t (&count_of_rank)[16], uint32_t max_levels,
                       LadderTables& tables, bool is_first_free = false) noexcept {
    uint64_t left[20] = {};  // words of rank r and above
    for (int r = 15; r >= 0; --r) {
        left[r] = left[r + 1] + count_of_rank[r];
    }
    // A level costs a count and a little time; one that saves less than 1/4096 bit a word is not
    // worth it. Measured: 1/256 codes as fast and makes frames 0.02 % larger.
    const uint64_t level_cost = left[0] / 4096 + 1;
    Plan plans[kMaxLevels][20];
    for (uint32_t depth = 0; depth < max_levels; ++depth) {  // levels that may follow
        for (uint32_t r = 0; r < 20; ++r) {
            Plan best = {4 * left[r], 4};
            for (uint32_t width = 1; depth > 0 && width <= 2 && r < 16; ++width) {
                const uint64_t bits =
                    width * left[r] + level_cost + plans[depth - 1][r + (1u << width) - 1].bits;
                if (bits < best.bits) {
                    best = {bits, static_cast<uint8_t>(width)};
                }
            }
            plans[depth][r] = best;
        }
    }
    std::memset(tables.widths, 0, sizeof tables.widths);
    tables.n_levels = 0;
    uint64_t bits = 0;
    uint32_t r = 0;
    if (is_first_free) {
        tables.widths[tables.n_levels++] = 1;
        r = 1;
        --max_levels;
    }
    for (uint32_t depth = max_levels; depth-- > 0;) {
        const uint8_t width = plans[depth][r].width;
        tables.widths[tables.n_levels++] = width;
        bits += width * left[r];
        if (width == 4) {
            break;
        }
        r += (1u << width) - 1;
    }
    return bits;
}

void derive(LadderTables& tables) noexcept {
    for (uint32_t rank = 0; rank < 16; ++rank) {
        const uint8_t symbol = tables.symbol_of_rank[rank];
        tables.rank_of_symbol[symbol] = static_cast<uint8_t>(rank);
    }
    tables.escape_rank = tables.rank_of_symbol[kEscapeSymbol];
}

// Ranks and levels for the symbols; returns the bits of levels and escapes.
uint64_t choose_levels(const SymbolCounts& symbols, uint32_t bytes_of_escape, LadderTables& tables,
                       uint32_t max_levels = kMaxLevels, bool is_first_free = false) noexcept {
    uint32_t count_of_rank[16] = {};
    rank_symbols(symbols, tables, count_of_rank);
    derive(tables);
    return choose_widths(count_of_rank, max_levels, tables, is_first_free) +
           uint64_t{8} * bytes_of_escape * symbols.of[kEscapeSymbol];
}

SymbolCounts counts_of(const uint32_t (&symbols)[16]) noexcept {
    SymbolCounts counts;
    std::copy_n(symbols, 16, counts.of);
    return counts;
}

}  // namespace

void sample_exponents(const uint8_t* words, const uint8_t* map, uint32_t n_words,
                      const Dtype& dtype, ExponentCounts& counts) noexcept {
    Histogram histogram(dtype);
    const size_t group_bytes = size_t{kGroupWords} * dtype.container_bytes;
    each_sampled_group(
        map, n_words, [&](uint32_t first, uint32_t n) { histogram.add(words, first, n); },
        [&](uint32_t first) {
            const uint8_t* group = words + size_t{first} * dtype.container_bytes;
            for (size_t line = 0; line < group_bytes; line += 64) {
                __builtin_prefetch(group + line);
            }
        });
    histogram.sum(counts);
}

uint64_t choose_tables(const ExponentCounts& counts, LadderTables& tables,
                       uint32_t max_levels) noexcept {
    tables.emax = choose_emax(counts);
    return choose_levels(count_symbols(counts, tables.emax), escape_bytes(counts.split), tables,
                         max_levels);
}

uint64_t choose_modelled_tables(const ExponentCounts& counts, uint32_t n_zeros,
                                LadderTables& tables) noexcept {
    const uint32_t mask = max_exponent(counts.split);
    uint32_t inside = 0;
    for (uint32_t k = 0; k < kZeroSymbol; ++k) {
        inside += counts.of[(mask - k) & mask];
    }
    uint32_t best = inside;
    uint32_t emax = mask;
    for (uint32_t e = 0; e < mask; ++e) {
        inside += counts.of[e] - counts.of[(e - kZeroSymbol) & mask];
        if (inside > best) {
            best = inside;
            emax = e;
        }
    }
    tables.emax = static_cast<uint16_t>(emax);
    SymbolCounts symbols = count_symbols(counts, emax);
    symbols.of[kZeroSymbol] = n_zeros;
    symbols.of[kEscapeSymbol] = counts.total - best - n_zeros;
    return choose_levels(symbols, escape_bytes(counts.split), tables);
}

uint64_t choose_symbol_levels(const uint32_t (&symbols)[16], uint32_t bytes_of_escape,
                              LadderTables& tables) noexcept {
    return choose_levels(counts_of(symbols), bytes_of_escape, tables);
}

uint64_t choose_levels_after(const uint32_t (&symbols)[16], uint32_t bytes_of_escape,
                             LadderTables& tables) noexcept {
    return choose_levels(counts_of(symbols), bytes_of_escape, tables, kMaxLevels, true);
}

void write_ladder_header(const LadderTables& tables, uint8_t* out) noexcept {
    uint32_t levels = 0;
    for (uint32_t l = 0; l < tables.n_levels; ++l) {
        const uint32_t code = tables.widths[l] == 4 ? 3 : tables.widths[l];
        levels |= code << (2 * l);
    }
    store_u16le(out, tables.emax);
    store_u16le(out + 2, static_cast<uint16_t>(levels));
    for (uint32_t i = 0; i < 8; ++i) {
        out[4 + i] = static_cast<uint8_t>(tables.symbol_of_rank[2 * i] |
                                          tables.symbol_of_rank[2 * i + 1] << 4);
    }
}

Status read_ladder_header(const uint8_t* in, Split split, LadderTables& tables) noexcept {
    static constexpr uint8_t kWidthOfCode[4] = {0, 1, 2, 4};
    tables = {};
    tables.emax = load_u16le(in);
    const uint32_t levels = load_u16le(in + 2);
    uint32_t n = 0;
    while (n < kMaxLevels && (n == 0 || tables.widths[n - 1] != 4)) {
        tables.widths[n] = kWidthOfCode[(levels >> (2 * n)) & 3];
        if (tables.widths[n++] == 0) {
            return Status::kLadderHeader;
        }
    }
    if (tables.emax > max_exponent(split) || tables.widths[n - 1] != 4 || levels >> (2 * n) != 0) {
        return Status::kLadderHeader;
    }
    tables.n_levels = static_cast<uint8_t>(n);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 8; ++i) {
        tables.symbol_of_rank[2 * i] = in[4 + i] & 15;
        tables.symbol_of_rank[2 * i + 1] = in[4 + i] >> 4;
        seen |= 1u << (in[4 + i] & 15) | 1u << (in[4 + i] >> 4);
    }
    if (seen != 0xFFFF) {
        return Status::kLadderSymbols;
    }
    derive(tables);
    return Status::kOk;
}

}  // namespace ogds
