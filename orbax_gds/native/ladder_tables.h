// The header of the ladder (FORMAT 7.4) and how an encoder chooses what it says.
#pragma once

#include "block_map.h"
#include "dtypes.h"
#include "ladder_kernels.h"
#include "status.h"

namespace ogds {

inline constexpr size_t kLadderHeaderBytes = 12;

inline constexpr uint32_t kMaxExponents = 2048;  // those of fp64

// How often each exponent of the split occurs among the words looked at.
struct ExponentCounts {
    Split split;
    uint32_t of[kMaxExponents];
    uint32_t total;
};

// Counts a fixed sample of the normal words of a chunk: 2,048 to 8,192, spread evenly.
void sample_exponents(const uint8_t* words, const uint8_t* map, uint32_t n_words,
                      const Dtype& dtype, ExponentCounts& counts) noexcept;

// The window with the most words, ranks by frequency, and of at most so many levels those that take
// the fewest bits.
// Returns the expected bits of exponents per `counts.total` words, escapes included.
uint64_t choose_tables(const ExponentCounts& counts, LadderTables& tables,
                       uint32_t max_levels = kMaxLevels) noexcept;

// The same for the symbols of FORMAT 7.6: `counts` are those of the exponents other than 0, less
// their rows' and columns' offsets, of the n_zeros of 0 only in the total.
uint64_t choose_modelled_tables(const ExponentCounts& counts, uint32_t n_zeros,
                                LadderTables& tables) noexcept;

// Ranks and levels for symbols that occur so often; emax stays. Returns the bits of the levels, and
// of escapes of so many bytes each.
uint64_t choose_symbol_levels(const uint32_t (&symbols)[16], uint32_t bytes_of_escape,
                              LadderTables& tables) noexcept;

// The same with a first level of width 1, whose bits are not counted.
uint64_t choose_levels_after(const uint32_t (&symbols)[16], uint32_t bytes_of_escape,
                             LadderTables& tables) noexcept;

void write_ladder_header(const LadderTables& tables, uint8_t* out) noexcept;

Status read_ladder_header(const uint8_t* in, Split split, LadderTables& tables) noexcept;

}  // namespace ogds
