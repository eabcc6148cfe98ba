#include "ans.h"

#include <algorithm>
#include <cstring>

#include "byte_counts.h"
#include "bytes.h"
#include "isa.h"
#include "sub_block.h"

namespace ogds {
namespace {

constexpr uint16_t kFlagNoSigns = 2;

uint32_t rest_bits_of(const Dtype& dtype, bool no_signs) noexcept {
    return ans_rest_bits(dtype.split) - (no_signs ? 1 : 0);
}

// Low bits of the rest that a sub-block may leave out.
uint32_t max_trimmed_bits_of(const Dtype& dtype) noexcept {
    return ans_rest_bits(dtype.split) - 1;
}

// The coded bytes of a sub-block, and what is written as it is.
struct Parts {
    const uint8_t* y;
    uint32_t n_escapes = 0;
    uint32_t any_rest = 0;  // the rests, ORed
};

// The sub-blocks of a chunk in order, cut up.
class Splitter {
public:
    Splitter(const ChunkWords& chunk, const Dtype& dtype, const AnsModel& model,
             Workspace& workspace) noexcept
        : chunk_(chunk), dtype_(dtype), runs_(chunk.map, chunk.n_words),
          predictor_(model.prediction, model.emax, runs_, dtype, workspace.predicted),
          workspace_(workspace) {}

    Parts next(uint32_t m) noexcept {
        const uint8_t* words =
            gather(chunk_.words, runs_, m, dtype_.container_bytes, workspace_.words);
        Parts parts = {workspace_.ans.y};
        const auto split = kernels().ans_words->split[static_cast<uint32_t>(dtype_.split)];
        parts.n_escapes = split(words, m, predictor_.next(m), workspace_.ans.y,
                                workspace_.ans.rests, workspace_.escapes, parts.any_rest);
        return parts;
    }

private:
    const ChunkWords& chunk_;
    const Dtype& dtype_;
    NormalRuns runs_;
    Predictor predictor_;
    Workspace& workspace_;
};

template <class Use>
Status each_sub_block(uint32_t n_words, Use use) noexcept {
    for (uint32_t done = 0; done < n_words;) {
        const uint32_t m = std::min(kSubBlockWords, n_words - done);
        if (const Status status = use(m); status != Status::kOk) {
            return status;
        }
        done += m;
    }
    return Status::kOk;
}

// The counts of the bytes y of the chunk, and whether no word has a sign.
void survey(const ChunkWords& chunk, const Dtype& dtype, Workspace& workspace,
            AnsHeader& header) noexcept {
    ByteCounts counts;
    uint32_t any_rest = 0;
    Splitter splitter(chunk, dtype, header.model, workspace);
    each_sub_block(chunk.n_normal_words, [&](uint32_t m) {
        const Parts parts = splitter.next(m);
        counts.add(parts.y, m);
        any_rest |= parts.any_rest;
        return Status::kOk;
    });
    fit_counts(counts.of(), header.counts);
    header.no_signs = any_rest >> (ans_rest_bits(dtype.split) - 1) == 0;
}

// The offsets of the prediction are afterwards those that were written.
bool write_header(AnsHeader& header, uint32_t n_words, PayloadWriter& out) noexcept {
    Prediction& prediction = header.model.prediction;
    uint8_t* bytes = out.reserve(kAnsHeaderBytes);
    if (bytes == nullptr || !write_offsets(prediction, n_words, out)) {
        return false;
    }
    store_u16le(bytes, static_cast<uint16_t>((prediction.columns != 0 ? kFlagPrediction : 0) |
                                             (header.no_signs ? kFlagNoSigns : 0)));
    store_u16le(bytes + 2, header.model.emax);
    store_u32le(bytes + 4, prediction.columns);
    return write_counts(header.counts, out);
}

// The words are read twice: should someone write to them, this finds bytes and signs that the first
// pass did not see.
Status encode_sub_block(const Parts& parts, uint32_t m, const Dtype& dtype, bool no_signs,
                        PayloadWriter& out, Workspace& workspace) noexcept {
    const uint32_t most = max_trimmed_bits_of(dtype);
    const auto z = static_cast<uint32_t>(__builtin_ctz(parts.any_rest | 1u << most));
    const uint32_t field_bits = rest_bits_of(dtype, no_signs) - z;
    uint8_t* stream_end = workspace.ans.stream + sizeof workspace.ans.stream;
    const size_t stream_bytes =
        kernels().ans->encode_stream(parts.y, m, workspace.ans.encode, stream_end);
    if (kernels().huffman->has_any(parts.y, m, workspace.ans.encode.unknown) ||
        parts.any_rest >> rest_bits_of(dtype, no_signs) != 0) {
        return Status::kWordsChanged;
    }
    uint8_t* head = out.reserve(kAnsHeadBytes);
    uint8_t* fields = out.reserve(ans_fields_bytes(field_bits, m));
    uint8_t* stream = out.reserve(stream_bytes);
    uint8_t* escapes = out.reserve(parts.n_escapes);
    if (head == nullptr || fields == nullptr || stream == nullptr || escapes == nullptr) {
        return Status::kNoSpace;
    }
    head[0] = static_cast<uint8_t>(z);
    head[1] = 0;
    store_u16le(head + 2, static_cast<uint16_t>(parts.n_escapes));
    store_u32le(head + 4, static_cast<uint32_t>(stream_bytes));
    write_fields(workspace.ans.rests, m, dtype.split, field_bits, z, fields);
    std::memcpy(stream, stream_end - stream_bytes, stream_bytes);
    std::memcpy(escapes, workspace.escapes, parts.n_escapes);
    out.checksum();
    return Status::kOk;
}

Status decode_sub_block(PayloadReader& in, uint32_t m, const Dtype& dtype, const AnsHeader& header,
                        const uint8_t* predicted, uint8_t* words, Workspace& workspace) noexcept {
    AnsHead head;
    if (const Status status = read_ans_head(in, m, dtype, header, head); status != Status::kOk) {
        return status;
    }
    const uint8_t* fields = in.take(head.fields_bytes);
    const uint8_t* stream = in.take(head.stream_bytes);
    const uint8_t* escapes = in.take(head.n_escapes);
    if (fields == nullptr || stream == nullptr || escapes == nullptr) {
        return Status::kPayloadShort;
    }
    in.checksum();
    uint8_t* y = workspace.ans.y;
    if (!kernels().ans->decode_stream(stream, head.stream_bytes, workspace.ans.decode, m, y)) {
        return Status::kAnsStream;
    }
    if (!escapes_fit(dtype.split, escapes, head.n_escapes)) {
        return Status::kAnsExponent;
    }
    const uint8_t* rests = read_fields(fields, m, dtype.split, head.field_bits, head.trimmed_bits,
                                       workspace.ans.rests);
    const auto merge = kernels().ans_words->merge[static_cast<uint32_t>(dtype.split)];
    const bool merged = merge(y, rests, m, predicted, escapes, head.n_escapes, words);
    return merged ? Status::kOk : Status::kAnsEscapes;
}

}  // namespace

uint8_t choose_ans_emax(const ExponentCounts& counts) noexcept {
    const uint32_t most = max_exponent(counts.split);
    uint32_t best = 0;
    uint32_t best_covered = 0;
    for (uint32_t emax = 0; emax <= most; ++emax) {
        uint32_t covered = 0;
        for (uint32_t k = 0; k < std::min(uint32_t{kAnsWindow}, most + 1); ++k) {
            const uint32_t e = (emax - k) & most;
            covered += e != 0 ? counts.of[e] : 0;
        }
        if (covered >= best_covered) {
            best = emax;
            best_covered = covered;
        }
    }
    return static_cast<uint8_t>(best);
}

Status read_ans_header(PayloadReader& in, uint32_t n_words, const Dtype& dtype,
                       AnsHeader& header) noexcept {
    const uint8_t* bytes = in.take(kAnsHeaderBytes);
    if (bytes == nullptr) {
        return Status::kPayloadShort;
    }
    const uint32_t flags = load_u16le(bytes);
    const uint32_t emax = load_u16le(bytes + 2);
    const uint32_t columns = load_u32le(bytes + 4);
    constexpr uint32_t kKnown = kFlagPrediction | kFlagNoSigns;
    const bool has_prediction = (flags & kFlagPrediction) != 0;
    if ((flags & ~kKnown) != 0 || emax > max_exponent(dtype.split) ||
        has_prediction != (columns != 0) || columns > n_words) {
        return Status::kAnsHeader;
    }
    header.no_signs = (flags & kFlagNoSigns) != 0;
    header.model.emax = static_cast<uint8_t>(emax);
    if (!read_offsets(in, n_words, columns, header.model.prediction)) {
        return Status::kPayloadShort;
    }
    return read_counts(in, header.counts);
}

Status read_ans_head(PayloadReader& in, uint32_t m, const Dtype& dtype, const AnsHeader& header,
                     AnsHead& head) noexcept {
    const uint8_t* bytes = in.take(kAnsHeadBytes);
    if (bytes == nullptr) {
        return Status::kPayloadShort;
    }
    head.trimmed_bits = bytes[0];
    head.n_escapes = load_u16le(bytes + 2);
    head.stream_bytes = load_u32le(bytes + 4);
    if (head.trimmed_bits > max_trimmed_bits_of(dtype) || bytes[1] != 0) {
        return Status::kAnsTrim;
    }
    if (head.n_escapes > m) {
        return Status::kAnsEscapes;
    }
    head.field_bits = rest_bits_of(dtype, header.no_signs) - head.trimmed_bits;
    head.fields_bytes = ans_fields_bytes(head.field_bits, m);
    return Status::kOk;
}

Status encode_ans(const ChunkWords& chunk, const Dtype& dtype, const AnsModel& model,
                  PayloadWriter& out, Workspace& workspace) noexcept {
    if (chunk.n_normal_words == 0) {
        return Status::kOk;
    }
    AnsHeader header;
    header.model = model;
    survey(chunk, dtype, workspace, header);
    if (!write_header(header, chunk.n_words, out)) {
        return Status::kNoSpace;
    }
    build_table(header.counts, workspace.ans.encode);
    Splitter splitter(chunk, dtype, header.model, workspace);
    return each_sub_block(chunk.n_normal_words, [&](uint32_t m) {
        return encode_sub_block(splitter.next(m), m, dtype, header.no_signs, out, workspace);
    });
}

Status decode_ans(PayloadReader& in, NormalRuns runs, uint32_t n_words, uint32_t n_normal_words,
                  const Dtype& dtype, uint8_t* words, Workspace& workspace) noexcept {
    if (!is_modelled(dtype.split)) {
        return Status::kAnsDtype;
    }
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    AnsHeader header;
    if (const Status status = read_ans_header(in, n_words, dtype, header); status != Status::kOk) {
        return status;
    }
    build_table(header.counts, workspace.ans.decode);
    Predictor predictor(header.model.prediction, header.model.emax, runs, dtype,
                        workspace.predicted);
    Places places(words, runs, dtype.container_bytes, workspace.keeps_words);
    return each_sub_block(n_normal_words, [&](uint32_t m) {
        const Status status = decode_sub_block(in, m, dtype, header, predictor.next(m),
                                               workspace.words, workspace);
        if (status == Status::kOk) {
            places.put(workspace.words, m);
        }
        return status;
    });
}

}  // namespace ogds
