// What a frame is made of, for inspection and tests.
#pragma once

#include "block_map.h"
#include "frame.h"
#include "ladder_tables.h"

namespace ogds {

struct FrameInfo {
    MapCounts blocks;
    LadderTables tables;  // of a ladder or modelled with words; n_levels = 0 otherwise
    uint32_t columns;       // of modelled or ans with a prediction, else 0
    bool sign_slot;         // of modelled
    bool no_signs;          // of ans
    uint64_t trimmed_bits;  // that modelled and ans leave out, of all words
    uint64_t n_escapes;
    // Bytes of each stream; those of different codecs exclude each other.
    size_t base_bytes;  // CRC of the base
    size_t map_bytes;
    size_t constants_bytes;
    size_t raw_bytes;
    size_t zstd_bytes;
    size_t heads_bytes;
    size_t offsets_bytes;
    size_t counts_bytes;  // of ans, with the bitmap
    size_t lengths_bytes;  // of huffman
    size_t fields_bytes;
    size_t level_bytes[kMaxLevels];
    size_t ans_bytes;  // its streams
    size_t huffman_bytes;  // its streams
    size_t escape_bytes;
    size_t plane_bytes;  // of delta: bits below the symbols
};

// Walks the streams of a frame whose header was read. Does not check CRCs or values.
Status read_frame_info(std::span<const uint8_t> frame, const FrameHeader& header,
                       Workspace& workspace, FrameInfo& info) noexcept;

}  // namespace ogds
