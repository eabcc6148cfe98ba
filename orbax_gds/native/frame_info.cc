#include "frame_info.h"

#include <algorithm>

#include "ans.h"
#include "delta.h"
#include "huffman.h"
#include "ladder.h"
#include "modelled.h"

namespace ogds {
namespace {

// Adds up the streams of a sub-block whose head was read.
Status add_streams(PayloadReader& in, const SubBlockHead& head, FrameInfo& info) noexcept {
    if (in.take(head.fields_bytes + head.levels_bytes + head.escapes_bytes) == nullptr) {
        return Status::kPayloadShort;
    }
    info.heads_bytes += 2 * size_t{info.tables.n_levels};
    info.fields_bytes += head.fields_bytes;
    info.n_escapes += head.n_escapes;
    info.escape_bytes += head.escapes_bytes;
    for (uint32_t l = 0; l < info.tables.n_levels; ++l) {
        info.level_bytes[l] += head.level_bytes[l];
    }
    return Status::kOk;
}

Status read_ladder_info(PayloadReader& in, uint32_t n_words, const Dtype& dtype,
                        FrameInfo& info) noexcept {
    if (dtype.split == Split::kNone) {
        return Status::kLadderDtype;
    }
    if (n_words == 0) {
        return Status::kOk;
    }
    const uint8_t* header = in.take(kLadderHeaderBytes);
    if (header == nullptr) {
        return Status::kPayloadShort;
    }
    Status status = read_ladder_header(header, dtype.split, info.tables);
    if (status != Status::kOk) {
        return status;
    }
    info.heads_bytes = kLadderHeaderBytes;
    for (uint32_t done = 0; done < n_words && status == Status::kOk; done += kSubBlockWords) {
        const uint32_t m = std::min(kSubBlockWords, n_words - done);
        SubBlockHead head;
        status = read_sub_block_head(in, m, dtype, info.tables, head);
        if (status == Status::kOk) {
            status = add_streams(in, head, info);
        }
    }
    return status;
}

Status read_modelled_info(PayloadReader& in, uint32_t n_words, uint32_t n_normal_words,
                          const Dtype& dtype, FrameInfo& info) noexcept {
    if (!is_modelled(dtype.split)) {
        return Status::kModelledDtype;
    }
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    ModelledTables tables = {};
    Status status = read_modelled_header(in, n_words, dtype.split, tables);
    if (status != Status::kOk) {
        return status;
    }
    info.tables = tables.ladder;
    info.columns = tables.prediction.columns;
    info.sign_slot = tables.ladder.sign_slot;
    info.heads_bytes = kModelledHeaderBytes;
    info.offsets_bytes = offset_bytes(n_words, info.columns);
    for (uint32_t left = n_normal_words; left > 0 && status == Status::kOk;) {
        ModelledHead head;
        status = read_modelled_head(in, left, dtype.split, tables, head);
        if (status == Status::kOk) {
            info.heads_bytes += kModelledHeadBytes;
            info.trimmed_bits += uint64_t{head.n_words} * head.trimmed_bits;
            status = add_streams(in, head.ladder, info);
            left -= head.n_words;
        }
    }
    return status;
}

Status read_ans_info(PayloadReader& in, uint32_t n_words, uint32_t n_normal_words,
                     const Dtype& dtype, FrameInfo& info) noexcept {
    if (!is_modelled(dtype.split)) {
        return Status::kAnsDtype;
    }
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    AnsHeader header = {};
    const size_t before = in.left();
    Status status = read_ans_header(in, n_words, dtype, header);
    if (status != Status::kOk) {
        return status;
    }
    info.columns = header.model.prediction.columns;
    info.no_signs = header.no_signs;
    info.heads_bytes = kAnsHeaderBytes;
    info.offsets_bytes = offset_bytes(n_words, info.columns);
    info.counts_bytes = before - in.left() - info.heads_bytes - info.offsets_bytes;
    for (uint32_t done = 0; done < n_normal_words && status == Status::kOk;
         done += kSubBlockWords) {
        const uint32_t m = std::min(kSubBlockWords, n_normal_words - done);
        AnsHead head;
        status = read_ans_head(in, m, dtype, header, head);
        if (status == Status::kOk &&
            in.take(head.fields_bytes + head.stream_bytes + head.n_escapes) == nullptr) {
            status = Status::kPayloadShort;
        }
        if (status == Status::kOk) {
            info.heads_bytes += kAnsHeadBytes;
            info.trimmed_bits += uint64_t{m} * head.trimmed_bits;
            info.fields_bytes += head.fields_bytes;
            info.ans_bytes += head.stream_bytes;
            info.escape_bytes += head.n_escapes;
        }
    }
    info.n_escapes = info.escape_bytes;
    return status;
}

Status read_delta_info(PayloadReader& in, uint32_t n_words, const Dtype& dtype,
                       FrameInfo& info) noexcept {
    if (n_words == 0) {
        return Status::kOk;
    }
    const size_t before = in.left();
    if (read_unchanged(in)) {
        info.heads_bytes = before - in.left();
        return Status::kOk;
    }
    DeltaPlan plan;
    Status status = read_delta_header(in, dtype, plan);
    if (status != Status::kOk) {
        return status;
    }
    info.tables = plan.tables.ladder;
    info.heads_bytes = kDeltaHeaderBytes + (plan.tables.decay != 0 ? kDeltaDecayBytes : 0);
    const size_t head_bytes =
        kDeltaHeadBytes + (plan.tables.has_scales ? kDeltaScaleBytes : 0);
    info.lengths_bytes = plan.tables.has_lengths ? kHuffmanHeaderBytes : 0;
    for (uint32_t done = 0; done < n_words && status == Status::kOk; done += kSubBlockWords) {
        const uint32_t m = std::min(kSubBlockWords, n_words - done);
        DeltaHead head;
        status = read_delta_head(in, m, dtype, plan.tables, head);
        if (status != Status::kOk) {
            return status;
        }
        const size_t coded = head.is_coded ? head.stream_ends[kHuffmanStreams - 1] : 0;
        info.heads_bytes += head_bytes + 2 * size_t{head.n_planes} +
                            (head.is_coded ? kHuffmanHeadBytes : 0);
        info.huffman_bytes += coded;
        info.plane_bytes += head.planes_bytes;
        status = in.take(coded) != nullptr ? add_streams(in, head.ladder, info)
                                           : Status::kPayloadShort;
        if (status == Status::kOk && in.take(head.planes_bytes) == nullptr) {
            status = Status::kPayloadShort;
        }
    }
    return status;
}

Status read_huffman_info(PayloadReader& in, uint32_t n_words, const Dtype& dtype,
                         FrameInfo& info) noexcept {
    if (!is_huffman(dtype)) {
        return Status::kHuffmanDtype;
    }
    if (n_words == 0) {
        return Status::kOk;
    }
    if (in.take(kHuffmanHeaderBytes) == nullptr) {
        return Status::kPayloadShort;
    }
    info.lengths_bytes = kHuffmanHeaderBytes;
    for (uint32_t done = 0; done < n_words; done += kSubBlockWords) {
        uint32_t ends[kHuffmanStreams];
        if (const Status status = read_huffman_head(in, ends); status != Status::kOk) {
            return status;
        }
        if (in.take(ends[kHuffmanStreams - 1]) == nullptr) {
            return Status::kPayloadShort;
        }
        info.heads_bytes += kHuffmanHeadBytes;
        info.huffman_bytes += ends[kHuffmanStreams - 1];
    }
    return Status::kOk;
}

}  // namespace

Status read_frame_info(std::span<const uint8_t> frame, const FrameHeader& header,
                       Workspace& workspace, FrameInfo& info) noexcept {
    const Dtype& dtype = dtype_of(header.dtype);
    PayloadReader in(frame.subspan(kFrameHeaderBytes, header.payload_bytes));
    info = {};
    info.blocks.n_normal_words = header.n_words;
    const bool has_base = (header.flags & kFlagDelta) != 0;
    info.base_bytes = has_base ? kBaseCrcBytes : 0;
    if (in.take(info.base_bytes) == nullptr) {
        return Status::kPayloadShort;
    }
    if ((header.flags & kFlagBlockMap) != 0) {
        BlockMap map;
        if (const Status status =
                read_block_map(in, header.n_words, dtype, has_base, workspace.map, map);
            status != Status::kOk) {
            return status;
        }
        info.blocks = map.counts;
        info.map_bytes = map_bytes_of(header.n_words);
        info.constants_bytes = size_t{map.counts.n_constant} * dtype.container_bytes;
    }
    if (header.codec == Codec::kDelta) {
        return has_base ? read_delta_info(in, info.blocks.n_normal_words, dtype, info)
                        : Status::kDeltaBaseAbsent;
    }
    if (header.codec == Codec::kLadder) {
        return read_ladder_info(in, info.blocks.n_normal_words, dtype, info);
    }
    if (header.codec == Codec::kModelled) {
        return read_modelled_info(in, header.n_words, info.blocks.n_normal_words, dtype, info);
    }
    if (header.codec == Codec::kAns) {
        return read_ans_info(in, header.n_words, info.blocks.n_normal_words, dtype, info);
    }
    if (header.codec == Codec::kHuffman) {
        return read_huffman_info(in, info.blocks.n_normal_words, dtype, info);
    }
    (header.codec == Codec::kZstd ? info.zstd_bytes : info.raw_bytes) = in.left();
    return Status::kOk;
}

}  // namespace ogds
