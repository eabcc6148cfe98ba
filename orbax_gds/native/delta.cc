#include "delta.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"
#include "delta_few.h"
#include "delta_plan.h"
#include "huffman.h"
#include "isa.h"

namespace ogds {
namespace {

constexpr uint32_t kFlagExponents = 1;
constexpr uint32_t kFlagLengths = 2;
constexpr uint32_t kFlagUnchanged = 4;  // alone
constexpr uint32_t kFlagDecay = 8;
constexpr uint32_t kFlagScales = 16;
constexpr uint32_t kFlagsKnown = kFlagExponents | kFlagLengths | kFlagDecay | kFlagScales;
constexpr size_t kFlagsBytes = 2;
constexpr size_t kLowBytesAt = 14;
constexpr size_t kZeroAt = 15;
// The header has a shift where that of a ladder of such exponents has the largest.
constexpr Split kShifts = Split::kE8m0;

// Bytes of an escape: what a difference has above its low bytes.
size_t escape_bytes(const Dtype& dtype, const DeltaTables& tables) noexcept {
    return size_t{dtype.container_bytes} - tables.low_bytes;
}

uint32_t container_log2(const Dtype& dtype) noexcept {
    return static_cast<uint32_t>(__builtin_ctz(dtype.container_bytes));
}

// The words that the differences are from, given the base's.
const uint8_t* without_decay(const uint8_t* base, uint32_t m, const DeltaTables& tables,
                             Workspace& workspace) noexcept {
    if (tables.decay == 0) {
        return base;
    }
    kernels().delta->decay(base, m, tables.decay, workspace.delta.base);
    return workspace.delta.base;
}

bool write_header(const DeltaPlan& plan, PayloadWriter& out) noexcept {
    uint8_t* header = out.reserve(kDeltaHeaderBytes);
    uint8_t* decay = out.reserve(plan.tables.decay != 0 ? kDeltaDecayBytes : 0);
    uint8_t* lengths = out.reserve(plan.tables.has_lengths ? kHuffmanHeaderBytes : 0);
    if (header == nullptr || decay == nullptr || lengths == nullptr) {
        return false;
    }
    store_u16le(header, static_cast<uint16_t>((plan.tables.exponents ? kFlagExponents : 0) |
                                              (plan.tables.has_lengths ? kFlagLengths : 0) |
                                              (plan.tables.decay != 0 ? kFlagDecay : 0) |
                                              (plan.tables.has_scales ? kFlagScales : 0)));
    if (plan.tables.decay != 0) {
        store_u16le(decay, plan.tables.decay);
    }
    write_ladder_header(plan.tables.ladder, header + 2);
    header[kLowBytesAt] = plan.tables.low_bytes;
    header[kZeroAt] = 0;
    if (plan.tables.has_lengths) {
        write_lengths(plan.lengths, lengths);
    }
    return true;
}

// Codes n bytes at `bitmap` if that makes them fewer.
bool write_coded_bitmap(const uint8_t* bitmap, uint32_t n, PayloadWriter& out,
                        Workspace& workspace) noexcept {
    HuffmanStreams& streams = workspace.huffman.streams;
    if (!kernels().huffman->encode(bitmap, n, workspace.huffman.encode, streams)) {
        return false;
    }
    size_t n_bytes = kHuffmanHeadBytes;
    for (const uint32_t stream_bytes : streams.n_bytes) {
        n_bytes += stream_bytes;
    }
    uint8_t* at = n_bytes < n ? out.reserve(n_bytes) : nullptr;
    if (at == nullptr) {
        return false;
    }
    uint8_t* stream = at + kHuffmanHeadBytes;
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        store_u16le(at + 2 * s, static_cast<uint16_t>(streams.n_bytes[s]));
        std::memcpy(stream, streams.of[s], streams.n_bytes[s]);
        stream += streams.n_bytes[s];
    }
    return true;
}

bool append(const uint8_t* bytes, size_t n, PayloadWriter& out) noexcept {
    uint8_t* to = out.reserve(n);
    if (to != nullptr) {
        std::memcpy(to, bytes, n);
    }
    return to != nullptr;
}

// Writes the levels of the m ranks in workspace.planes[0]; the counts of those after the first go
// to `counts`. Leaves in is_coded whether the first bitmap is coded.
bool write_delta_levels(uint32_t m, const DeltaTables& tables, uint8_t* counts, bool& is_coded,
                        PayloadWriter& out, Workspace& workspace) noexcept {
    const LadderKernels& kernel = *kernels().ladder;
    const LadderTables& ladder = tables.ladder;
    uint32_t n = m;
    for (uint32_t l = 0; l < ladder.n_levels; ++l) {
        const size_t n_bytes = level_bytes(ladder.widths[l], n);
        uint8_t* level = l == 0 ? workspace.bitmaps : out.reserve(n_bytes);
        if (level == nullptr) {
            return false;
        }
        const uint32_t n_next = kernel.encode_level(ladder.widths[l], workspace.planes[l % 2], n,
                                                    level, workspace.planes[(l + 1) % 2]);
        if (l == 0) {
            const auto bitmap_bytes = static_cast<uint32_t>(level_bytes(1, m));
            is_coded = tables.has_lengths &&
                       write_coded_bitmap(level, bitmap_bytes, out, workspace);
            const size_t done = is_coded ? bitmap_bytes : 0;
            if (!append(level + done, n_bytes - done, out)) {
                return false;
            }
        }
        n = n_next;
        if (l + 1 < ladder.n_levels) {
            store_u16le(counts + 2 * l, static_cast<uint16_t>(n));
        }
    }
    return true;
}

// Low bytes and planes go past the stage: they are most of what is written.
bool write_below(const LowBits& below, uint32_t low_bytes, uint32_t m,
                 PayloadWriter& out) noexcept {
    bool written = low_bytes == 0 || out.append(below.low, size_t{low_bytes} * m);
    for (uint32_t plane = 0; plane < below.n && written; ++plane) {
        written = out.append(below.of[plane], level_bytes(1, below.n_bits[plane]));
    }
    return written;
}

Status encode_sub_block(const uint8_t* words, const uint8_t* base, uint32_t m, const Dtype& dtype,
                        const DeltaTables& tables, PayloadWriter& out,
                        Workspace& workspace) noexcept {
    LowBits& below = workspace.delta.below;
    const SplitDeltaFn split = kernels().delta->split[container_log2(dtype)];
    const uint32_t n_escapes = split(words, base, m, delta_format(dtype), tables,
                                     workspace.planes[0], workspace.delta.escapes, below);
    const size_t counts_bytes = 2 * size_t{tables.ladder.n_levels};
    const size_t scale_bytes = tables.has_scales ? kDeltaScaleBytes : 0;
    uint8_t* counts =
        out.reserve(counts_bytes + kDeltaHeadBytes + scale_bytes + 2 * size_t{below.n});
    if (counts == nullptr) {
        return Status::kNoSpace;
    }
    store_u16le(counts + counts_bytes - 2, static_cast<uint16_t>(n_escapes));
    uint8_t* head = counts + counts_bytes;
    head[0] = static_cast<uint8_t>(below.n);
    uint8_t* n_bits = head + kDeltaHeadBytes + scale_bytes;
    if (tables.has_scales) {
        write_scale(scale_of(tables), head + kDeltaHeadBytes);
    }
    for (uint32_t plane = 0; plane < below.n; ++plane) {
        store_u16le(n_bits + 2 * plane, static_cast<uint16_t>(below.n_bits[plane]));
    }
    bool is_coded = false;
    if (!write_delta_levels(m, tables, counts, is_coded, out, workspace) ||
        !append(workspace.delta.escapes, n_escapes * escape_bytes(dtype, tables), out)) {
        return Status::kNoSpace;
    }
    head[1] = is_coded ? 1 : 0;
    return Status::kOk;
}

// Decodes the bitmap that is coded into workspace.bitmaps, where read_levels looks for it.
Status read_coded_bitmap(const uint8_t* streams, const DeltaHead& head, uint32_t m,
                         Workspace& workspace) noexcept {
    const auto n = static_cast<uint32_t>(level_bytes(1, m));
    const bool ended = kernels().huffman->decode(streams, head.stream_ends,
                                                 workspace.huffman.decode, n, workspace.bitmaps);
    return ended ? Status::kOk : Status::kHuffmanStream;
}

// Where low bytes and planes lie: in the payload, or in the workspace those planes behind whose end
// a reader might go past that of the payload, which `left` bytes follow.
LowBitsView view_below(const uint8_t* bytes, const DeltaHead& head, uint32_t low_bytes, uint32_t m,
                       size_t left, Workspace& workspace) noexcept {
    LowBitsView view;
    view.low = bytes;
    view.n = head.n_planes;
    const uint8_t* const end = bytes + head.planes_bytes + left;
    uint8_t* copy = workspace.sub_block;
    bytes += size_t{low_bytes} * m;
    for (uint32_t plane = 0; plane < view.n; ++plane) {
        const size_t n_bytes = level_bytes(1, head.plane_bits[plane]);
        view.of[plane] = bytes;
        view.n_bits[plane] = head.plane_bits[plane];
        bytes += n_bytes;
        if (static_cast<size_t>(end - bytes) < LowBitsView::kBeyond) {
            std::memcpy(copy, view.of[plane], n_bytes);
            view.of[plane] = copy;
            copy += n_bytes;
        }
    }
    return view;
}

// A sub-block whose ranks lie in the workspace.
struct DeltaSubBlock {
    DeltaTables tables;
    DeltaHead head;
    const uint8_t* escapes;
    LowBitsView below;
};

Status read_sub_block(PayloadReader& in, uint32_t m, const Dtype& dtype, const DeltaPlan& plan,
                      DeltaSubBlock& sub_block, Workspace& workspace) noexcept {
    DeltaHead& head = sub_block.head;
    sub_block.tables = plan.tables;
    if (const Status status = read_delta_head(in, m, dtype, sub_block.tables, head);
        status != Status::kOk) {
        return status;
    }
    const uint8_t* streams = in.take(head.is_coded ? head.stream_ends[kHuffmanStreams - 1] : 0);
    if (streams == nullptr) {
        return Status::kPayloadShort;
    }
    const uint8_t* levels = in.take(head.ladder.levels_bytes);
    sub_block.escapes = in.take(head.ladder.escapes_bytes);
    const uint8_t* planes = in.take(head.planes_bytes);
    if (levels == nullptr || sub_block.escapes == nullptr || planes == nullptr) {
        return Status::kPayloadShort;
    }
    in.checksum();
    LadderTables ladder = plan.tables.ladder;
    ladder.sign_slot = head.is_coded;
    if (head.is_coded) {
        if (const Status status = read_coded_bitmap(streams, head, m, workspace);
            status != Status::kOk) {
            return status;
        }
    }
    if (const Status status = read_levels(levels, head.ladder, ladder, workspace);
        status != Status::kOk) {
        return status;
    }
    sub_block.below =
        view_below(planes, head, sub_block.tables.low_bytes, m, in.left(), workspace);
    return Status::kOk;
}

void copy_runs(NormalRuns runs, uint32_t n_words, uint32_t word_bytes, const uint8_t* base,
               uint8_t* words) noexcept {
    while (words != nullptr && words != base && n_words > 0) {
        const Run run = runs.next(n_words);
        const size_t at = size_t{run.first} * word_bytes;
        std::memcpy(words + at, base + at, size_t{run.n_words} * word_bytes);
        n_words -= run.n_words;
    }
}

}  // namespace

DeltaFormat delta_format(const Dtype& dtype) noexcept {
    DeltaFormat format = {};
    format.bits = dtype.bits;
    format.shift = static_cast<uint8_t>(8 * dtype.container_bytes - dtype.bits);
    if (dtype.split != Split::kNone && split_bits(dtype.split).sign != 0) {
        format.flip = ((uint64_t{1} << (dtype.bits - 1)) - 1) << format.shift;
    }
    if (has_delta_exponents(dtype.split)) {
        format.exponent_shift = static_cast<uint8_t>(split_bits(dtype.split).mantissa);
        format.exponent_mask = static_cast<uint8_t>(max_exponent(dtype.split));
    }
    return format;
}

Status encode_delta(const ChunkWords& chunk, const uint8_t* base, const Dtype& dtype,
                    const DeltaPlan& plan, PayloadWriter& out, Workspace& workspace) noexcept {
    if (!write_header(plan, out)) {
        return Status::kNoSpace;
    }
    if (plan.tables.has_lengths) {
        build_table(plan.lengths, workspace.huffman.encode);
    }
    NormalRuns runs(chunk.map, chunk.n_words);
    DeltaTables tables = plan.tables;
    for (uint32_t done = 0; done < chunk.n_normal_words;) {
        const uint32_t m = std::min(kSubBlockWords, chunk.n_normal_words - done);
        if (tables.has_scales) {
            set_scale(tables, plan.scales[scale_at(done, chunk.n_normal_words, plan.n_scales)]);
        }
        NormalRuns base_runs = runs;
        const uint8_t* from =
            gather(chunk.words, runs, m, dtype.container_bytes, workspace.words);
        const uint8_t* from_base = without_decay(
            gather(base, base_runs, m, dtype.container_bytes, workspace.delta.base), m, tables,
            workspace);
        PayloadWriter stage(workspace.sub_block);
        if (const Status status =
                encode_sub_block(from, from_base, m, dtype, tables, stage, workspace);
            status != Status::kOk) {
            return status;
        }
        if (!out.append(workspace.sub_block, stage.size()) ||
            !write_below(workspace.delta.below, tables.low_bytes, m, out)) {
            return Status::kNoSpace;
        }
        done += m;
    }
    return Status::kOk;
}

Status encode_unchanged(PayloadWriter& out) noexcept {
    uint8_t* flags = out.reserve(kFlagsBytes);
    if (flags == nullptr) {
        return Status::kNoSpace;
    }
    store_u16le(flags, kFlagUnchanged);
    return Status::kOk;
}

bool read_unchanged(PayloadReader& in) noexcept {
    PayloadReader ahead = in;
    const uint8_t* flags = ahead.take(kFlagsBytes);
    if (flags == nullptr || load_u16le(flags) != kFlagUnchanged) {
        return false;
    }
    in.take(kFlagsBytes);
    return true;
}

Status read_delta_header(PayloadReader& in, const Dtype& dtype, DeltaPlan& plan) noexcept {
    const uint8_t* header = in.take(kDeltaHeaderBytes);
    if (header == nullptr) {
        return Status::kPayloadShort;
    }
    const uint32_t flags = load_u16le(header);
    plan.tables.exponents = (flags & kFlagExponents) != 0;
    plan.tables.has_lengths = (flags & kFlagLengths) != 0;
    plan.tables.low_bytes = header[kLowBytesAt];
    const bool has_decay = (flags & kFlagDecay) != 0;
    plan.tables.has_scales = (flags & kFlagScales) != 0;
    if ((flags & ~kFlagsKnown) != 0 || (has_decay && !may_decay(dtype)) ||
        header[kZeroAt] != 0) {
        return Status::kDeltaHeader;
    }
    if (const Status status = read_ladder_header(header + 2, kShifts, plan.tables.ladder);
        status != Status::kOk) {
        return status;
    }
    if (!is_scale(scale_of(plan.tables), dtype) ||
        (plan.tables.has_scales && scale_of(plan.tables) != DeltaScale{})) {
        return Status::kDeltaHeader;
    }
    if (has_decay) {
        const uint8_t* decay = in.take(kDeltaDecayBytes);
        if (decay == nullptr) {
            return Status::kPayloadShort;
        }
        plan.tables.decay = load_u16le(decay);
        if (plan.tables.decay == 0 || plan.tables.decay > kMaxDecay) {
            return Status::kDeltaHeader;
        }
    }
    if (!plan.tables.has_lengths) {
        return Status::kOk;
    }
    const uint8_t* lengths = in.take(kHuffmanHeaderBytes);
    return lengths == nullptr ? Status::kPayloadShort
                              : read_lengths(lengths, kHuffmanBytes, plan.lengths);
}

Status read_delta_head(PayloadReader& in, uint32_t m, const Dtype& dtype, DeltaTables& tables,
                       DeltaHead& head) noexcept {
    // The counts say how long the levels are only when it is known what is coded of them.
    PayloadReader counts = in;
    const uint8_t* bytes = in.take(2 * size_t{tables.ladder.n_levels} + kDeltaHeadBytes);
    if (bytes == nullptr) {
        return Status::kPayloadShort;
    }
    bytes += 2 * size_t{tables.ladder.n_levels};
    head.n_planes = bytes[0];
    head.is_coded = bytes[1] == 1;
    if (head.n_planes > kMaxLowPlanes || bytes[1] > 1 ||
        (head.is_coded && !tables.has_lengths)) {
        return Status::kDeltaSubBlock;
    }
    if (tables.has_scales) {
        const uint8_t* own = in.take(kDeltaScaleBytes);
        if (own == nullptr) {
            return Status::kPayloadShort;
        }
        const DeltaScale scale = read_scale(own);
        if (!is_scale(scale, dtype)) {
            return Status::kDeltaSubBlock;
        }
        set_scale(tables, scale);
    }
    LadderTables ladder = tables.ladder;
    ladder.sign_slot = head.is_coded;
    if (const Status status = read_level_counts(counts, m, kShifts, 0, ladder, head.ladder);
        status != Status::kOk) {
        return status;
    }
    head.ladder.escapes_bytes = head.ladder.n_escapes * escape_bytes(dtype, tables);
    const uint8_t* n_bits = in.take(2 * size_t{head.n_planes});
    if (n_bits == nullptr) {
        return Status::kPayloadShort;
    }
    head.planes_bytes = size_t{tables.low_bytes} * m;
    for (uint32_t plane = 0; plane < head.n_planes; ++plane) {
        head.plane_bits[plane] = load_u16le(n_bits + 2 * plane);
        head.planes_bytes += level_bytes(1, head.plane_bits[plane]);
        if (head.plane_bits[plane] > m) {
            return Status::kDeltaSubBlock;
        }
    }
    return head.is_coded ? read_huffman_head(in, head.stream_ends) : Status::kOk;
}

Status decode_delta(PayloadReader& in, NormalRuns runs, uint32_t n_normal_words,
                    const uint8_t* base, const Dtype& dtype, uint8_t* words,
                    Workspace& workspace) noexcept {
    const uint32_t word_bytes = dtype.container_bytes;
    if (n_normal_words == 0) {
        return Status::kOk;
    }
    if (read_unchanged(in)) {
        copy_runs(runs, n_normal_words, word_bytes, base, words);
        return Status::kOk;
    }
    DeltaPlan plan;
    if (const Status status = read_delta_header(in, dtype, plan); status != Status::kOk) {
        return status;
    }
    if (plan.tables.has_lengths) {
        build_table(plan.lengths, workspace.huffman.decode);
    }
    const DeltaFormat format = delta_format(dtype);
    for (uint32_t done = 0; done < n_normal_words;) {
        const uint32_t m = std::min(kSubBlockWords, n_normal_words - done);
        DeltaSubBlock sub_block;
        if (const Status status = read_sub_block(in, m, dtype, plan, sub_block, workspace);
            status != Status::kOk) {
            return status;
        }
        const DeltaTables& tables = sub_block.tables;
        const RankPlanes& ranks = workspace.planes[0];
        const uint32_t n_escapes = sub_block.head.ladder.n_escapes;
        ChangedWords changed;
        if (words != nullptr && has_unchanged_symbol(tables) &&
            find_few(ranks, m, tables, changed)) {
            copy_runs(runs, m, word_bytes, base, words);
            if (!merge_few(changed, ranks, m, format, tables, sub_block.escapes, n_escapes,
                           sub_block.below, runs, words)) {
                return Status::kDeltaSymbols;
            }
        } else {
            Places places(words, runs, word_bytes, workspace.keeps_words);
            const MergeTarget target = places.target(m, workspace.words);
            const uint8_t* from =
                without_decay(gather(base, runs, m, word_bytes, workspace.delta.base), m,
                              tables, workspace);
            const MergeDeltaFn merge = kernels().delta->merge[container_log2(dtype)];
            if (!merge(ranks, from, m, format, tables, sub_block.escapes, n_escapes,
                       sub_block.below, target.words, target.past_caches)) {
                return Status::kDeltaSymbols;
            }
            places.put(target, m);
        }
        done += m;
    }
    return Status::kOk;
}

}  // namespace ogds
