#include "ladder.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"

namespace ogds {
namespace {

// The next m normal words: where they lie if that is one piece, else gathered.
const uint8_t* gather(const uint8_t* words, NormalRuns& runs, uint32_t m, uint32_t word_bytes,
                      uint8_t* scratch) noexcept {
    Run run = runs.next(m);
    if (run.n_words == m) {
        return words + size_t{run.first} * word_bytes;
    }
    uint8_t* to = scratch;
    for (uint32_t left = m;; run = runs.next(left)) {
        const size_t n_bytes = size_t{run.n_words} * word_bytes;
        std::memcpy(to, words + size_t{run.first} * word_bytes, n_bytes);
        to += n_bytes;
        left -= run.n_words;
        if (left == 0) {
            return scratch;
        }
    }
}

// Writes m normal words to their places.
void scatter(const uint8_t* from, NormalRuns& runs, uint32_t m, uint32_t word_bytes,
             uint8_t* words) noexcept {
    while (m > 0) {
        const Run run = runs.next(m);
        const size_t n_bytes = size_t{run.n_words} * word_bytes;
        std::memcpy(words + size_t{run.first} * word_bytes, from, n_bytes);
        from += n_bytes;
        m -= run.n_words;
    }
}

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
    uint32_t n = m;
    for (uint32_t l = 0; l < tables.n_levels; ++l) {
        const uint32_t width = tables.widths[l];
        uint8_t* level = out.reserve(level_bytes(width, n));
        if (level == nullptr) {
            return Status::kNoSpace;
        }
        n = kernel.encode_level(width, workspace.planes[l % 2], n, level,
                                workspace.planes[(l + 1) % 2]);
        const uint32_t count = l + 1 < tables.n_levels ? n : n_escapes;
        store_u16le(counts + 2 * l, static_cast<uint16_t>(count));
    }
    const size_t n_bytes = size_t{n_escapes} * escape_bytes(dtype.split);
    uint8_t* escapes = out.reserve(n_bytes);
    if (escapes == nullptr) {
        return Status::kNoSpace;
    }
    std::memcpy(escapes, workspace.escapes, n_bytes);
    return Status::kOk;
}

Status status_of(LevelResult result) noexcept {
    switch (result) {
        case LevelResult::kOk: return Status::kOk;
        case LevelResult::kCountDiffers: return Status::kLadderCount;
        case LevelResult::kRankTooLarge: break;
    }
    return Status::kLadderRank;
}

// Decodes the levels, last to first, into workspace.planes[0].
Status decode_levels(const uint8_t* levels_end, const SubBlockHead& head,
                     const LadderTables& tables, Workspace& workspace) noexcept {
    const LadderKernels& kernel = *kernels().ladder;
    uint32_t n_next = 0;
    const uint8_t* level = levels_end;
    for (uint32_t l = tables.n_levels; l-- > 0;) {
        const uint32_t width = tables.widths[l];
        const uint32_t n = head.n_values[l];
        level -= level_bytes(width, n);
        const LevelResult result =
            kernel.decode_level(width, level, n, workspace.planes[(l + 1) % 2], n_next,
                                workspace.planes[l % 2]);
        if (result != LevelResult::kOk) {
            return status_of(result);
        }
        n_next = n;
    }
    return Status::kOk;
}

Status decode_sub_block(PayloadReader& in, uint32_t m, const Dtype& dtype,
                        const LadderTables& tables, uint8_t* words,
                        Workspace& workspace) noexcept {
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
    if (const Status status = decode_levels(levels + head.levels_bytes, head, tables, workspace);
        status != Status::kOk) {
        return status;
    }
    if (!escapes_fit(dtype.split, escapes, head.n_escapes)) {
        return Status::kLadderExponent;
    }
    const MergeFn merge = kernels().ladder->merge[static_cast<size_t>(dtype.split)];
    const bool merged = merge(workspace.planes[0], m, tables, nullptr, fields, escapes,
                              head.n_escapes, words);
    return merged ? Status::kOk : Status::kLadderEscapes;
}

}  // namespace

bool escapes_fit(Split split, const uint8_t* escapes, uint32_t n) noexcept {
    const uint32_t most = max_exponent(split);
    if (most >= 256) {
        for (uint32_t i = 0; i < n; ++i) {
            if (load_u16le(escapes + 2 * size_t{i}) > most) {
                return false;
            }
        }
        return true;
    }
    return most == 255 ||
           std::all_of(escapes, escapes + n, [most](uint8_t exponent) { return exponent <= most; });
}

Status read_sub_block_head(PayloadReader& in, uint32_t m, const Dtype& dtype,
                           const LadderTables& tables, SubBlockHead& head) noexcept {
    const uint8_t* counts = in.take(2 * size_t{tables.n_levels});
    if (counts == nullptr) {
        return Status::kPayloadShort;
    }
    head.fields_bytes = fields_bytes(rest_bits(dtype.split), m);
    head.levels_bytes = 0;
    uint32_t n = m;
    for (uint32_t l = 0; l < tables.n_levels; ++l) {
        head.n_values[l] = n;
        head.levels_bytes += level_bytes(tables.widths[l], n);
        const uint32_t count = load_u16le(counts + 2 * l);
        if (l + 1 < tables.n_levels && count > n) {
            return Status::kLadderCount;
        }
        n = count;
    }
    head.n_escapes = n;
    head.escapes_bytes = size_t{n} * escape_bytes(dtype.split);
    return n > m ? Status::kLadderEscapes : Status::kOk;
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
        if (const Status status = encode_sub_block(from, m, dtype, tables, out, workspace);
            status != Status::kOk) {
            return status;
        }
        out.checksum();
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
    for (uint32_t done = 0; done < n_normal_words;) {
        const uint32_t m = std::min(kSubBlockWords, n_normal_words - done);
        NormalRuns after = runs;
        const Run run = after.next(m);
        const bool in_place = words != nullptr && run.n_words == m;
        uint8_t* to = workspace.words;
        if (in_place) {
            to = words + size_t{run.first} * dtype.container_bytes;
        }
        if (const Status status = decode_sub_block(in, m, dtype, tables, to, workspace);
            status != Status::kOk) {
            return status;
        }
        if (in_place) {
            runs = after;
        } else if (words != nullptr) {
            scatter(to, runs, m, dtype.container_bytes, words);
        }
        done += m;
    }
    return Status::kOk;
}

}  // namespace ogds
