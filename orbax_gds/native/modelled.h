// Codec 2, modelled: FORMAT 7.6.
#pragma once

#include "block_map.h"
#include "ladder_tables.h"
#include "payload.h"
#include "prediction.h"
#include "sub_block.h"
#include "workspace.h"

namespace ogds {

inline constexpr size_t kModelledHeaderBytes = 20;
inline constexpr size_t kModelledHeadBytes = 2;  // of a sub-block, before its counts

// Low bits of the rest that a sub-block may leave out.
constexpr uint32_t max_trimmed_bits(Split split) noexcept { return rest_bits(split) - 8; }

// Of low bits that are 0 in all of m words those to leave out: none where the fields would get
// longer, as bitmaps of few words do.
constexpr uint32_t useful_trim(Split split, uint32_t z, uint32_t m) noexcept {
    const uint32_t bits = rest_bits(split);
    return fields_bytes(bits - z, m) <= fields_bytes(bits, m) ? z : 0;
}

// What the header says, and whether to look for low bits that are 0.
struct ModelledTables {
    LadderTables ladder;
    Prediction prediction;
    bool trims = false;
};

// Codes the normal words of a chunk. With a sign slot and a word that has a sign all is
// coded again without.
Status encode_modelled(const ChunkWords& chunk, const Dtype& dtype, const ModelledTables& tables,
                       PayloadWriter& out, Workspace& workspace) noexcept;

// Inverse. With words == nullptr everything is decoded and checked, and nothing kept.
Status decode_modelled(PayloadReader& in, NormalRuns runs, uint32_t n_words,
                       uint32_t n_normal_words, const Dtype& dtype, uint8_t* words,
                       Workspace& workspace) noexcept;

// Reads the header and where the offsets are.
Status read_modelled_header(PayloadReader& in, uint32_t n_words, Split split,
                            ModelledTables& tables) noexcept;

// The head of a sub-block.
struct ModelledHead {
    uint32_t n_words;
    uint32_t trimmed_bits;
    SubBlockHead ladder;
};

// Reads the head of the next sub-block, where n_left words are left to decode.
Status read_modelled_head(PayloadReader& in, uint32_t n_left, Split split,
                          const ModelledTables& tables, ModelledHead& head) noexcept;

}  // namespace ogds
