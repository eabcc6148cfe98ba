#include "ladder.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"

namespace ogds {
namespace {

Status encode_sub_block(const uint8_t* words, uint32_t m, const Dtype& dtype,
                        const LadderTables& tables, PayloadWriter& out,
                        Workspace& workspace) noexcept {
    const LadderKernels& kernel = *kernels().ladder;
    const SplitFn split = kernel.split[static_cast<size_t>(dtype.split)];
    uint8_t* counts = out.reserve(2 * size_t{tables.n_levels});
    uint8_t* fields = out.reserve(fields_bytes(rest_bits(dtype.split), m));
    if (counts == nullptr || fields == nullptr) {
        return Status::kNoSpace;
    }
    const uint32_t n_escapes =
        split(words, m, tables, nullptr, fields, workspace.planes[0], workspace.escapes);
    SignSlot no_slot;
    return write_levels(m, dtype.split, tables, n_escapes, counts, no_slot, out, workspace);
}

Status decode_sub_block(PayloadReader& in, uint32_t m, const Dtype& dtype,
                        const LadderTables& tables, Places& places,
                        Workspace& workspace) noexcept {
    const size_t before = in.taken();
    SubBlockHead head;
    if (const Status status = read_sub_block_head(in, m, dtype, tables, head);
        status != Status::kOk) {
        return status;
    }
    const uint8_t* fields = in.take(head.fields_bytes);
    const uint8_t* levels = in.take(head.levels_bytes);
    const uint8_t* escapes = in.take(head.escapes_bytes);
    if (fields == nullptr || levels == nullptr || escapes == nullptr) {
        return Status::kPayloadShort;
    }
    in.checksum();
    if (const Status status = read_levels(levels, head, tables, workspace);
        status != Status::kOk) {
        return status;
    }
    const Ahead ahead = {escapes + head.escapes_bytes, in.taken() - before};
    return merge_sub_block({m, dtype.split, tables, fields, escapes, head.n_escapes, ahead},
                           nullptr, places, workspace);
}

}  // namespace

Status read_sub_block_head(PayloadReader& in, uint32_t m, const Dtype& dtype,
                           const LadderTables& tables, SubBlockHead& head) noexcept {
    return read_level_counts(in, m, dtype.split, rest_bits(dtype.split), tables, head);
}

Status encode_ladder(const uint8_t* words, NormalRuns runs, uint32_t n_normal_words,
                     const Dtype& dtype, const LadderTables& tables, PayloadWriter& out,
                     Workspace& workspace) noexcept {
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    uint8_t* header = out.reserve(kLadderHeaderBytes);
    if (header == nullptr) {
        return Status::kNoSpace;
    }
    write_ladder_header(tables, header);
    for (uint32_t done = 0; done < n_normal_words;) {
        const uint32_t m = std::min(kSubBlockWords, n_normal_words - done);
        const uint8_t* from = gather(words, runs, m, dtype.container_bytes, workspace.words);
        PayloadWriter stage(workspace.sub_block);
        if (const Status status = encode_sub_block(from, m, dtype, tables, stage, workspace);
            status != Status::kOk) {
            return status;
        }
        if (!out.append(workspace.sub_block, stage.size())) {
            return Status::kNoSpace;
        }
        done += m;
    }
    return Status::kOk;
}

Status decode_ladder(PayloadReader& in, NormalRuns runs, uint32_t n_normal_words,
                     const Dtype& dtype, uint8_t* words, Workspace& workspace) noexcept {
    if (dtype.split == Split::kNone) {
        return Status::kLadderDtype;
    }
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    const uint8_t* header = in.take(kLadderHeaderBytes);
    if (header == nullptr) {
        return Status::kPayloadShort;
    }
    LadderTables tables;
    if (const Status status = read_ladder_header(header, dtype.split, tables);
        status != Status::kOk) {
        return status;
    }
    Places places(words, runs, dtype.container_bytes, workspace.keeps_words);
    for (uint32_t done = 0; done < n_normal_words;) {
        const uint32_t m = std::min(kSubBlockWords, n_normal_words - done);
        if (const Status status =
                decode_sub_block(in, m, dtype, tables, places, workspace);
            status != Status::kOk) {
            return status;
        }
        done += m;
    }
    return Status::kOk;
}

}  // namespace ogds
