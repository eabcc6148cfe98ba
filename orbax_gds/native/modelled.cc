#include "modelled.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"
#include "modelled_cuts.h"
#include "rest_planes.h"

namespace ogds {
namespace {

constexpr uint16_t kFlagSignSlot = 2;
constexpr size_t kReservedAt = 14;
constexpr size_t kColumnsAt = 16;

Status write_header(const ModelledTables& tables, uint32_t n_words, PayloadWriter& out) noexcept {
    Prediction prediction = tables.prediction;  // its offsets already lie where they go
    uint8_t* header = out.reserve(kModelledHeaderBytes);
    if (header == nullptr || !write_offsets(prediction, n_words, out)) {
        return Status::kNoSpace;
    }
    store_u16le(header, static_cast<uint16_t>((prediction.columns != 0 ? kFlagPrediction : 0) |
                                              (tables.ladder.sign_slot ? kFlagSignSlot : 0)));
    write_ladder_header(tables.ladder, header + 2);
    store_u16le(header + kReservedAt, 0);
    store_u32le(header + kColumnsAt, prediction.columns);
    return Status::kOk;
}

// Makes the fields of full rests those of rests without their low z bits; returns their length.
size_t trim_fields(uint8_t* fields, uint32_t m, Split split, uint32_t z,
                   Workspace& workspace) noexcept {
    if (split == Split::kFp32 && z > 0 && z < 16) {
        uint8_t* integers = workspace.fields;
        std::memcpy(integers, fields + m, 2 * size_t{m});
        write_trimmed(integers, m, z, workspace.bytes, fields + m);
    }
    return fields_bytes(rest_bits(split) - z, m);
}

// Inverse, for any fields without their low z > 0 bits: the planes after the first field.
void untrim_fields(const uint8_t* fields, uint32_t m, Split split, uint32_t z, uint8_t* lower,
                   Workspace& workspace) noexcept {
    if (split == Split::kFp32) {
        read_trimmed(fields + m, m, z, workspace.bytes, lower);
        return;
    }
    const size_t kept = fields_bytes(rest_bits(split) - z, m) - m;
    std::memcpy(lower, fields + m, kept);
    std::memset(lower + kept, 0, z * level_bytes(1, m));
}

Status encode_sub_block(const uint8_t* words, const Cut& cut, const Dtype& dtype,
                        const ModelledTables& tables, const uint8_t* predicted, bool& is_free,
                        PayloadWriter& out, Workspace& workspace) noexcept {
    const uint32_t m = cut.n_words;
    const uint32_t z = useful_trim(dtype.split, cut.trimmed_bits, m);
    const size_t all_bytes = fields_bytes(rest_bits(dtype.split), m);
    uint8_t* head = out.reserve(kModelledHeadBytes + 2 * size_t{tables.ladder.n_levels});
    uint8_t* fields = out.reserve(all_bytes);
    if (head == nullptr || fields == nullptr) {
        return Status::kNoSpace;
    }
    const SplitFn split = kernels().ladder->split[static_cast<size_t>(dtype.split)];
    const uint32_t n_escapes = split(words, m, tables.ladder, predicted, fields,
                                     workspace.planes[0], workspace.escapes);
    if (z > 0) {
        out.give_back(all_bytes - trim_fields(fields, m, dtype.split, z, workspace));
    }
    head[0] = static_cast<uint8_t>(z);
    head[1] = cut.size;
    SignSlot slot = {tables.ladder.sign_slot ? fields : nullptr};
    const Status status = write_levels(m, dtype.split, tables.ladder, n_escapes,
                                       head + kModelledHeadBytes, slot, out, workspace);
    is_free = slot.is_free;
    return status;
}

// Leaves in `is_free` whether the sign slot was free, if there is one, and stops where it was not.
Status encode_sub_blocks(const ChunkWords& chunk, const Dtype& dtype,
                         const ModelledTables& tables, bool& is_free, PayloadWriter& out,
                         Workspace& workspace) noexcept {
    is_free = true;
    if (const Status status = write_header(tables, chunk.n_words, out); status != Status::kOk) {
        return status;
    }
    const size_t head_bytes = kModelledHeadBytes + 2 * size_t{tables.ladder.n_levels};
    NormalRuns runs(chunk.map, chunk.n_words);
    Predictor predictor(tables.prediction, static_cast<uint8_t>(tables.ladder.emax), runs, dtype,
                        workspace.predicted);
    for (uint32_t done = 0; done < chunk.n_normal_words && is_free;) {
        const uint32_t m = std::min(kSubBlockWords, chunk.n_normal_words - done);
        const uint8_t* from =
            gather(chunk.words, runs, m, dtype.container_bytes, workspace.words);
        const uint8_t* predicted = predictor.next(m);
        Cut cuts[kMaxCuts] = {{m, 0, 0}};
        const uint32_t n_cuts =
            tables.trims ? cut_sub_blocks(from, m, dtype, head_bytes, cuts) : 1;
        for (uint32_t i = 0; i < n_cuts && is_free; ++i) {
            PayloadWriter stage(workspace.sub_block);
            if (const Status status = encode_sub_block(from, cuts[i], dtype, tables, predicted,
                                                       is_free, stage, workspace);
                status != Status::kOk) {
                return status;
            }
            if (!out.append(workspace.sub_block, stage.size())) {
                return Status::kNoSpace;
            }
            from += size_t{cuts[i].n_words} * dtype.container_bytes;
            predicted += cuts[i].n_words;
        }
        done += m;
    }
    return Status::kOk;
}

// The fields of full rests, which merging wants: those in the payload where nothing is left out.
const uint8_t* full_fields(const uint8_t* fields, uint32_t m, Split split, uint32_t z,
                           Workspace& workspace) noexcept {
    if (z == 0) {
        return fields;
    }
    std::memcpy(workspace.fields, fields, m);
    untrim_fields(fields, m, split, z, workspace.fields + m, workspace);
    return workspace.fields;
}

Status decode_sub_block(PayloadReader& in, const ModelledHead& head, const Dtype& dtype,
                        const ModelledTables& tables, Predictor& predictor, Places& places,
                        Workspace& workspace) noexcept {
    const uint32_t m = head.n_words;
    const size_t before = in.taken();
    const uint8_t* fields = in.take(head.ladder.fields_bytes);
    const uint8_t* levels = in.take(head.ladder.levels_bytes);
    const uint8_t* escapes = in.take(head.ladder.escapes_bytes);
    if (fields == nullptr || levels == nullptr || escapes == nullptr) {
        return Status::kPayloadShort;
    }
    in.checksum();
    if (tables.ladder.sign_slot) {
        kernels().ladder->read_sign_slot(fields, m, workspace.bitmaps);
    }
    fields = full_fields(fields, m, dtype.split, head.trimmed_bits, workspace);
    if (const Status status =
            read_levels(levels, head.ladder, tables.ladder, workspace);
        status != Status::kOk) {
        return status;
    }
    const Ahead ahead = {escapes + head.ladder.escapes_bytes, in.taken() - before};
    return merge_sub_block(
        {m, dtype.split, tables.ladder, fields, escapes, head.ladder.n_escapes, ahead},
        &predictor, places, workspace);
}

}  // namespace

Status read_modelled_header(PayloadReader& in, uint32_t n_words, Split split,
                            ModelledTables& tables) noexcept {
    const uint8_t* header = in.take(kModelledHeaderBytes);
    if (header == nullptr) {
        return Status::kPayloadShort;
    }
    const uint32_t flags = load_u16le(header);
    const uint32_t columns = load_u32le(header + kColumnsAt);
    const bool has_prediction = (flags & kFlagPrediction) != 0;
    if ((flags & ~uint32_t{kFlagPrediction | kFlagSignSlot}) != 0 ||
        load_u16le(header + kReservedAt) != 0 || has_prediction != (columns != 0) ||
        columns > n_words) {
        return Status::kModelledHeader;
    }
    if (const Status status = read_ladder_header(header + 2, split, tables.ladder);
        status != Status::kOk) {
        return status;
    }
    tables.ladder.sign_slot = (flags & kFlagSignSlot) != 0;
    const bool has_offsets = read_offsets(in, n_words, columns, tables.prediction);
    return has_offsets ? Status::kOk : Status::kPayloadShort;
}

Status read_modelled_head(PayloadReader& in, uint32_t n_left, Split split,
                          const ModelledTables& tables, ModelledHead& head) noexcept {
    const uint8_t* bytes = in.take(kModelledHeadBytes);
    if (bytes == nullptr) {
        return Status::kPayloadShort;
    }
    head.trimmed_bits = bytes[0];
    if (head.trimmed_bits > max_trimmed_bits(split) || bytes[1] > kMaxSubBlockSize) {
        return Status::kModelledSubBlock;
    }
    head.n_words = std::min(kSubBlockWords >> bytes[1], n_left);
    return read_level_counts(in, head.n_words, split, rest_bits(split) - head.trimmed_bits,
                       tables.ladder, head.ladder);
}

Status encode_modelled(const ChunkWords& chunk, const Dtype& dtype, const ModelledTables& tables,
                       PayloadWriter& out, Workspace& workspace) noexcept {
    if (chunk.n_normal_words == 0) {
        return Status::kOk;
    }
    const PayloadWriter before = out;
    ModelledTables used = tables;
    for (;;) {
        bool is_free = true;
        const Status status = encode_sub_blocks(chunk, dtype, used, is_free, out, workspace);
        if (is_free) {
            return status;
        }
        out = before;
        used.ladder.sign_slot = false;
    }
}

Status decode_modelled(PayloadReader& in, NormalRuns runs, uint32_t n_words,
                       uint32_t n_normal_words, const Dtype& dtype, uint8_t* words,
                       Workspace& workspace) noexcept {
    if (!is_modelled(dtype.split)) {
        return Status::kModelledDtype;
    }
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    ModelledTables tables;
    if (const Status status = read_modelled_header(in, n_words, dtype.split, tables);
        status != Status::kOk) {
        return status;
    }
    Predictor predictor(tables.prediction, static_cast<uint8_t>(tables.ladder.emax), runs, dtype,
                        workspace.predicted);
    Places places(words, runs, dtype.container_bytes, workspace.keeps_words);
    for (uint32_t done = 0; done < n_normal_words;) {
        ModelledHead head;
        if (const Status status =
                read_modelled_head(in, n_normal_words - done, dtype.split, tables, head);
            status != Status::kOk) {
            return status;
        }
        if (const Status status =
                decode_sub_block(in, head, dtype, tables, predictor, places, workspace);
            status != Status::kOk) {
            return status;
        }
        done += head.n_words;
    }
    return Status::kOk;
}

}  // namespace ogds
