// Codec 6, delta: FORMAT 7.11.
#pragma once

#include "block_map.h"
#include "delta_kernels.h"
#include "delta_scale.h"
#include "dtypes.h"
#include "huffman_code.h"
#include "payload.h"
#include "sub_block.h"
#include "workspace.h"

namespace ogds {

inline constexpr size_t kDeltaHeaderBytes = 16;  // before the lengths
inline constexpr size_t kDeltaHeadBytes = 2;     // of a sub-block, after its counts
inline constexpr size_t kDeltaDecayBytes = 2;    // after the header, with a decay

// Whether words of the base may be taken less a decay.
constexpr bool may_decay(const Dtype& dtype) noexcept {
    return dtype.split == Split::kFp32;
}

DeltaFormat delta_format(const Dtype& dtype) noexcept;

// What a chunk is coded with.
struct DeltaPlan {
    // More than a chunk of the engine has; the sub-blocks of longer ones share.
    static constexpr uint32_t kMostScales = 64;

    DeltaTables tables;
    DeltaScale scales[kMostScales];  // with tables.has_scales
    uint32_t n_scales = 0;
    HuffmanLengths lengths = {};  // of the bytes of the first bitmap, with tables.has_lengths
};

// Codes the normal words of a chunk as differences from `base`, which has as many words.
Status encode_delta(const ChunkWords& chunk, const uint8_t* base, const Dtype& dtype,
                    const DeltaPlan& plan, PayloadWriter& out, Workspace& workspace) noexcept;

// The coded words of a chunk whose words are all the base's.
Status encode_unchanged(PayloadWriter& out) noexcept;

// Inverse of both; `words` may be `base`. With words == nullptr everything is decoded and checked,
// and nothing kept.
Status decode_delta(PayloadReader& in, NormalRuns runs, uint32_t n_normal_words,
                    const uint8_t* base, const Dtype& dtype, uint8_t* words,
                    Workspace& workspace) noexcept;

// Whether the coded words say that nothing has changed; takes them if they do.
bool read_unchanged(PayloadReader& in) noexcept;

Status read_delta_header(PayloadReader& in, const Dtype& dtype, DeltaPlan& plan) noexcept;

// The head of a sub-block and where its parts lie.
struct DeltaHead {
    SubBlockHead ladder;
    bool is_coded;  // the first bitmap of level 0
    uint32_t n_planes;
    uint32_t plane_bits[kMaxLowPlanes];
    size_t planes_bytes;
    uint32_t stream_ends[kHuffmanStreams];
};

// Takes the scale to the tables where sub-blocks have their own.
Status read_delta_head(PayloadReader& in, uint32_t m, const Dtype& dtype, DeltaTables& tables,
                       DeltaHead& head) noexcept;

}  // namespace ogds
