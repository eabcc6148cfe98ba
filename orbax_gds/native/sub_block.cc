#include "sub_block.h"

#include <algorithm>
#include <cstring>

#include "bytes.h"
#include "stream_copy.h"

namespace ogds {
namespace {

// Predicted and merged at once, so that the predictions stay in the first cache.
constexpr uint32_t kPredictedWords = 4096;

Status status_of(LevelResult result) noexcept {
    switch (result) {
        case LevelResult::kOk: return Status::kOk;
        case LevelResult::kCountDiffers: return Status::kLadderCount;
        case LevelResult::kRankTooLarge: break;
    }
    return Status::kLadderRank;
}

// Moves the first bitmap of level 0 into the sign slot and the others to where it was.
void move_to_slot(uint8_t* level, uint32_t width, uint32_t m, SignSlot& slot) noexcept {
    const size_t bitmap_bytes = level_bytes(1, m);
    slot.is_free = kernels().ladder->fill_sign_slot(level, m, slot.bytes);
    std::memmove(level, level + bitmap_bytes, (width - 1) * bitmap_bytes);
}

}  // namespace

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

uint32_t Places::piece(uint32_t m) const noexcept {
    if (words_ == nullptr) {
        return m;
    }
    NormalRuns runs = runs_;
    return runs.next(m).n_words;
}

MergeTarget Places::target(uint32_t m, uint8_t* scratch) const noexcept {
    if (words_ == nullptr) {
        return {scratch};
    }
    NormalRuns runs = runs_;
    const Run run = runs.next(m);
    uint8_t* words = words_ + size_t{run.first} * word_bytes_;
    const bool is_one = run.n_words == m;
    const bool streams = is_one && !keeps_words_ &&
                         reinterpret_cast<uintptr_t>(words) % kStreamAlignment == 0;
    const bool in_place = streams || (is_one && keeps_words_);
    return {in_place ? words : scratch, streams, {}, in_place};
}

void Places::put(const uint8_t* from, uint32_t m) noexcept {
    while (words_ != nullptr && m > 0) {
        const Run run = runs_.next(m);
        const size_t n_bytes = size_t{run.n_words} * word_bytes_;
        uint8_t* to = words_ + size_t{run.first} * word_bytes_;
        if (keeps_words_) {
            std::memcpy(to, from, n_bytes);
        } else {
            stream_copy(to, from, n_bytes);
        }
        from += n_bytes;
        m -= run.n_words;
    }
}

void Places::put(const MergeTarget& target, uint32_t m) noexcept {
    if (target.in_place) {
        runs_.next(m);
    } else {
        put(target.words, m);
    }
}

Status read_level_counts(PayloadReader& in, uint32_t m, Split split, uint32_t rest_bits,
                   const LadderTables& tables, SubBlockHead& head) noexcept {
    const uint8_t* counts = in.take(2 * size_t{tables.n_levels});
    if (counts == nullptr) {
        return Status::kPayloadShort;
    }
    head.fields_bytes = fields_bytes(rest_bits, m);
    head.levels_bytes = 0;
    uint32_t n = m;
    for (uint32_t l = 0; l < tables.n_levels; ++l) {
        const uint32_t width = tables.widths[l] - (tables.sign_slot && l == 0 ? 1u : 0u);
        head.n_values[l] = n;
        head.level_bytes[l] = level_bytes(width, n);
        head.levels_bytes += head.level_bytes[l];
        const uint32_t count = load_u16le(counts + 2 * l);
        if (l + 1 < tables.n_levels && count > n) {
            return Status::kLadderCount;
        }
        n = count;
    }
    head.n_escapes = n;
    head.escapes_bytes = size_t{n} * escape_bytes(split);
    return n > m ? Status::kLadderEscapes : Status::kOk;
}

Status write_levels(uint32_t m, Split split, const LadderTables& tables, uint32_t n_escapes,
                    uint8_t* counts, SignSlot& slot, PayloadWriter& out,
                    Workspace& workspace) noexcept {
    const LadderKernels& kernel = *kernels().ladder;
    uint32_t n = m;
    for (uint32_t l = 0; l < tables.n_levels; ++l) {
        const uint32_t width = tables.widths[l];
        uint8_t* level = out.reserve(level_bytes(width, n));
        if (level == nullptr) {
            return Status::kNoSpace;
        }
        n = kernel.encode_level(width, workspace.planes[l % 2], n, level,
                                workspace.planes[(l + 1) % 2]);
        if (l == 0 && slot.bytes != nullptr) {
            move_to_slot(level, width, m, slot);
            out.give_back(level_bytes(1, m));
        }
        const uint32_t count = l + 1 < tables.n_levels ? n : n_escapes;
        store_u16le(counts + 2 * l, static_cast<uint16_t>(count));
    }
    const size_t n_bytes = size_t{n_escapes} * escape_bytes(split);
    uint8_t* escapes = out.reserve(n_bytes);
    if (escapes == nullptr) {
        return Status::kNoSpace;
    }
    std::memcpy(escapes, workspace.escapes, n_bytes);
    return Status::kOk;
}

Status read_levels(const uint8_t* levels, const SubBlockHead& head,
                   const LadderTables& tables, Workspace& workspace) noexcept {
    const LadderKernels& kernel = *kernels().ladder;
    uint32_t n_next = 0;
    const uint8_t* level = levels + head.levels_bytes;
    for (uint32_t l = tables.n_levels; l-- > 0;) {
        const uint32_t n = head.n_values[l];
        level -= head.level_bytes[l];
        const uint8_t* bitmaps = level;
        if (l == 0 && tables.sign_slot) {
            std::memcpy(workspace.bitmaps + level_bytes(1, n), level, head.level_bytes[0]);
            bitmaps = workspace.bitmaps;
        }
        const LevelResult result =
            kernel.decode_level(tables.widths[l], bitmaps, n, workspace.planes[(l + 1) % 2],
                                n_next, workspace.planes[l % 2]);
        if (result != LevelResult::kOk) {
            return status_of(result);
        }
        n_next = n;
    }
    return Status::kOk;
}

Status merge_sub_block(const MergeParts& parts, Predictor* predictor, Places& places,
                       Workspace& workspace) noexcept {
    if (!escapes_fit(parts.split, parts.escapes, parts.n_escapes)) {
        return Status::kLadderExponent;
    }
    const MergeFn merge = kernels().ladder->merge[static_cast<size_t>(parts.split)];
    Escapes escapes = {parts.escapes, parts.n_escapes};
    for (Slice slice = {0, 0}; slice.first < parts.m; slice.first += slice.n_words) {
        const uint32_t left = parts.m - slice.first;
        const uint32_t most = predictor != nullptr ? std::min(left, kPredictedWords) : left;
        slice.n_words = places.piece(most);
        MergeTarget target = places.target(slice.n_words, workspace.words);
        const size_t begin = parts.ahead.n_bytes * slice.first / parts.m;
        const size_t end = parts.ahead.n_bytes * (slice.first + slice.n_words) / parts.m;
        target.ahead = {parts.ahead.at + begin, end - begin};
        const uint8_t* predicted = predictor != nullptr ? predictor->next(slice.n_words) : nullptr;
        if (!merge(workspace.planes[0], parts.m, slice, parts.tables, predicted, parts.fields,
                   escapes, target)) {
            return Status::kLadderEscapes;
        }
        places.put(target, slice.n_words);
    }
    return escapes.n == 0 ? Status::kOk : Status::kLadderEscapes;
}

bool escapes_fit(Split split, const uint8_t* escapes, uint32_t n) noexcept {
    const uint32_t most = max_exponent(split);
    if (escape_bytes(split) == 1) {
        return most == 255 || std::all_of(escapes, escapes + n,
                                          [most](uint8_t exponent) { return exponent <= most; });
    }
    for (uint32_t i = 0; i < n; ++i) {
        if (load_u16le(escapes + 2 * i) > most) {
            return false;
        }
    }
    return true;
}

}  // namespace ogds
