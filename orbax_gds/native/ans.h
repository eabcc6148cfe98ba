// Codec 3, ans: FORMAT 7.7.
#pragma once

#include "ans_tables.h"
#include "ans_words.h"
#include "block_map.h"
#include "ladder_tables.h"
#include "payload.h"
#include "prediction.h"
#include "workspace.h"

namespace ogds {

inline constexpr size_t kAnsHeaderBytes = 8;  // before offsets and counts
inline constexpr size_t kAnsHeadBytes = 8;    // of a sub-block
inline constexpr size_t kMaxAnsCountsBytes = kAnsBitmapBytes + 2 * kAnsBytes;

// What exponents are predicted to be.
struct AnsModel {
    uint8_t emax = 0;
    Prediction prediction;
};

// The emax whose window holds the most exponents.
uint8_t choose_ans_emax(const ExponentCounts& counts) noexcept;

// Codes the normal words of a chunk.
Status encode_ans(const ChunkWords& chunk, const Dtype& dtype, const AnsModel& model,
                  PayloadWriter& out, Workspace& workspace) noexcept;

// Inverse. With words == nullptr everything is decoded and checked, and nothing kept.
Status decode_ans(PayloadReader& in, NormalRuns runs, uint32_t n_words, uint32_t n_normal_words,
                  const Dtype& dtype, uint8_t* words, Workspace& workspace) noexcept;

// What the header says.
struct AnsHeader {
    AnsModel model;
    bool no_signs = false;
    AnsCounts counts;
};

Status read_ans_header(PayloadReader& in, uint32_t n_words, const Dtype& dtype,
                       AnsHeader& header) noexcept;

// The head of a sub-block and where its parts lie.
struct AnsHead {
    uint32_t trimmed_bits;
    uint32_t field_bits;  // that are left of the rest
    size_t fields_bytes;
    size_t stream_bytes;
    uint32_t n_escapes;
};

Status read_ans_head(PayloadReader& in, uint32_t m, const Dtype& dtype, const AnsHeader& header,
                     AnsHead& head) noexcept;

}  // namespace ogds
