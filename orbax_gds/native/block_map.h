// The block map of FORMAT 7.1: blocks of 256 words that are all zero or all the same are not coded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtypes.h"
#include "payload.h"
#include "status.h"

namespace ogds {

inline constexpr uint32_t kBlockWords = 256;
inline constexpr uint32_t kMaxChunkWords = uint32_t{1} << 28;

enum class BlockCode : uint8_t { kNormal = 0, kZero = 1, kConstant = 2, kSame = 3 };

constexpr uint32_t n_blocks_of(uint32_t n_words) noexcept {
    return (n_words + kBlockWords - 1) / kBlockWords;
}

constexpr size_t map_bytes_of(uint32_t n_words) noexcept {
    return (n_blocks_of(n_words) + 3) / 4;
}

inline BlockCode block_code(const uint8_t* map, uint32_t block) noexcept {
    return static_cast<BlockCode>((map[block / 4] >> (2 * (block % 4))) & 3);
}

// What a map says in sum.
struct MapCounts {
    uint32_t n_zero = 0;      // blocks
    uint32_t n_constant = 0;  // blocks
    uint32_t n_same = 0;      // blocks: the base's
    uint32_t n_unchanged = 0;  // blocks of any code that are the base's; not known to a reader
    uint32_t n_normal_words = 0;
};

// Consecutive words of normal blocks.
struct Run {
    uint32_t first;
    uint32_t n_words;
};

// Walks through the normal words of a chunk, run by run; without a map all words are one run.
class NormalRuns {
public:
    NormalRuns(const uint8_t* map, uint32_t n_words) noexcept : map_(map), n_words_(n_words) {}

    // The next run, at most max_words (a multiple of 256, or all that are left) long; empty at the
    // end.
    Run next(uint32_t max_words) noexcept;

private:
    // Sets at_ and end_ to the next run of normal blocks.
    void find_run() noexcept;

    const uint8_t* map_;
    uint32_t n_words_;
    uint32_t at_ = 0;
    uint32_t end_ = 0;  // of the run that at_ is in
};

// The words of a chunk to be coded and what is known of them.
struct ChunkWords {
    const uint8_t* words;
    const uint8_t* map;  // nullptr: all words are normal
    uint32_t n_words;
    uint32_t n_normal_words;
    uint32_t columns;  // words in a row where the chunk is a matrix, else 0
    const uint8_t* base = nullptr;  // the words of the base, if it is known
};

// Makes the map of a chunk and writes it and the constants to `out`. False if it found no room.
// `base` is nullptr or the words of the base. `map` has room for map_bytes_of(n_words) and keeps a
// map that nobody else can change.
bool write_block_map(const uint8_t* words, const uint8_t* base, uint32_t n_words,
                     const Dtype& dtype, uint8_t* map, PayloadWriter& out,
                     MapCounts& counts) noexcept;

// Whether a map with these counts makes the payload smaller, whatever the codec.
bool map_pays(const MapCounts& counts, uint32_t n_words, const Dtype& dtype) noexcept;

// A parsed map; `constants` points into the payload.
struct BlockMap {
    const uint8_t* map = nullptr;
    const uint8_t* constants = nullptr;
    MapCounts counts;
};

// Copies the map to `copy` (room for map_bytes_of(n_words)) before it looks at it: the caller's
// memory may change at any time, and what follows must not leave the bounds that were counted.
// Without has_base blocks that are the base's are refused.
Status read_block_map(PayloadReader& in, uint32_t n_words, const Dtype& dtype, bool has_base,
                      uint8_t* copy, BlockMap& map) noexcept;

// Writes the words of the blocks that are not normal to their places. `base` may be `words`.
void fill_blocks(const BlockMap& map, uint32_t n_words, const Dtype& dtype, const uint8_t* base,
                 uint8_t* words) noexcept;

}  // namespace ogds
