#include "frame_info.h"

#include <algorithm>

#include "ladder.h"

namespace ogds {
namespace {

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
    if (const Status status = read_ladder_header(header, dtype.split, info.tables);
        status != Status::kOk) {
        return status;
    }
    info.heads_bytes = kLadderHeaderBytes;
    for (uint32_t done = 0; done < n_words; done += kSubBlockWords) {
        const uint32_t m = std::min(kSubBlockWords, n_words - done);
        SubBlockHead head;
        if (const Status status = read_sub_block_head(in, m, dtype, info.tables, head);
            status != Status::kOk) {
            return status;
        }
        if (in.take(head.fields_bytes + head.levels_bytes + head.escapes_bytes) == nullptr) {
            return Status::kPayloadShort;
        }
        info.heads_bytes += 2 * size_t{info.tables.n_levels};
        info.fields_bytes += head.fields_bytes;
        info.n_escapes += head.n_escapes;
        info.escape_bytes += head.escapes_bytes;
        for (uint32_t l = 0; l < info.tables.n_levels; ++l) {
            info.level_bytes[l] += level_bytes(info.tables.widths[l], head.n_values[l]);
        }
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
    if ((header.flags & kFlagBlockMap) != 0) {
        BlockMap map;
        if (const Status status =
                read_block_map(in, header.n_words, dtype, workspace.map, map);
            status != Status::kOk) {
            return status;
        }
        info.blocks = map.counts;
        info.map_bytes = map_bytes_of(header.n_words);
        info.constants_bytes = size_t{map.counts.n_constant} * dtype.container_bytes;
    }
    if (header.codec == Codec::kLadder) {
        return read_ladder_info(in, info.blocks.n_normal_words, dtype, info);
    }
    (header.codec == Codec::kZstd ? info.zstd_bytes : info.raw_bytes) = in.left();
    return Status::kOk;
}

}  // namespace ogds
