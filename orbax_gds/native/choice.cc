#include "choice.h"

#include <algorithm>
#include <span>

#include "ans.h"
#include "huffman.h"
#include "ladder.h"
#include "modelled_plan.h"
#include "raw.h"
#include "zstd.h"

namespace ogds {
namespace {

// What is coded must save this share (1 / 50 = 2 %) of the raw bytes to be used by choice.
constexpr int64_t kMinSaving = 50;
// So much of the raw bits modelled must save over the ladder, as it takes more time.
constexpr int64_t kMinModelledSaving = 400;

// Whether so many bits for what is the exponents' in the raw form save enough. `bits` are those of
// `total` words.
bool pays(int64_t bits, uint32_t total, const Dtype& dtype) noexcept {
    const int64_t exponent_bits = split_bits(dtype.split).exponent;
    return bits * kMinSaving < int64_t{total} * (exponent_bits * kMinSaving - dtype.bits);
}

// Levels of the ladder by CodecChoice::kFast. Measured on bfloat16 weights, encode / decode x memcpy
// and ratio: one level 0.65 / 0.88, 1.33; two 0.54 / 0.67, 1.45; as many as pay 0.54 / 0.70, 1.51.
constexpr uint32_t kFastLevels = 1;

PayloadWriter limited(const PayloadWriter& out, size_t raw) noexcept {
    PayloadWriter less = out;
    less.limit_rest(raw - ceil_div(raw, kMinSaving));
    return less;
}

// Where encode_modelled would put the offsets; nullptr if there is no room.
uint8_t* offsets_in(PayloadWriter out, const ChunkWords& chunk) noexcept {
    const bool has_room = out.reserve(kModelledHeaderBytes) != nullptr;
    return has_room ? out.reserve(offset_bytes(chunk.n_words, chunk.columns)) : nullptr;
}

// Codes words without a split by zstd if that pays; else raw.
Status encode_whole_words(const ChunkWords& chunk, const Dtype& dtype, int level,
                          PayloadWriter& out, Workspace& workspace, Codec& codec) noexcept {
    const NormalRuns runs(chunk.map, chunk.n_words);
    const uint32_t n_normal = chunk.n_normal_words;
    if (level != 0 &&
        zstd_is_hopeful(chunk.words, runs, n_normal, dtype, level, kMinSaving, workspace)) {
        PayloadWriter zstd = limited(out, raw_bytes(dtype, n_normal));
        const Status status =
            encode_zstd(chunk.words, runs, n_normal, dtype, level, zstd, workspace);
        if (status != Status::kNoSpace) {
            out = zstd;
            codec = Codec::kZstd;
            return status;
        }
    }
    return encode_raw(chunk.words, runs, dtype, out, n_normal);
}

// Codes by a ladder if it pays; `bits` are the exponents' of `total` words. False, and nothing
// written, if not.
bool encode_if_it_pays(const ChunkWords& chunk, const Dtype& dtype, const LadderTables& tables,
                       int64_t bits, uint32_t total, PayloadWriter& out,
                       Workspace& workspace) noexcept {
    if (!pays(bits, total, dtype)) {
        return false;
    }
    const NormalRuns runs(chunk.map, chunk.n_words);
    PayloadWriter ladder = limited(out, raw_bytes(dtype, chunk.n_normal_words));
    if (encode_ladder(chunk.words, runs, chunk.n_normal_words, dtype, tables, ladder, workspace) !=
        Status::kOk) {
        return false;
    }
    out = ladder;
    return true;
}

// Codes words with a split by a ladder of few levels if that pays; else raw.
Status encode_floats_fast(const ChunkWords& chunk, const Dtype& dtype, PayloadWriter& out,
                          Workspace& workspace, Codec& codec) noexcept {
    ExponentCounts counts;
    LadderTables tables;
    sample_exponents(chunk.words, chunk.map, chunk.n_words, dtype, counts);
    const auto bits = static_cast<int64_t>(choose_tables(counts, tables, kFastLevels));
    if (encode_if_it_pays(chunk, dtype, tables, bits, counts.total, out, workspace)) {
        codec = Codec::kLadder;
        return Status::kOk;
    }
    const NormalRuns runs(chunk.map, chunk.n_words);
    return encode_raw(chunk.words, runs, dtype, out, chunk.n_normal_words);
}

// Codes words with a split by what a sample says is smallest.
Status encode_floats(const ChunkWords& chunk, const Dtype& dtype, PayloadWriter& out,
                     Workspace& workspace, Codec& codec) noexcept {
    const NormalRuns runs(chunk.map, chunk.n_words);
    const uint32_t n_normal = chunk.n_normal_words;
    const size_t raw = raw_bytes(dtype, n_normal);
    ExponentCounts counts;
    LadderTables tables;
    sample_exponents(chunk.words, chunk.map, chunk.n_words, dtype, counts);
    const auto ladder_bits = static_cast<int64_t>(choose_tables(counts, tables));
    const int64_t least_gain = int64_t{counts.total} * dtype.bits / kMinModelledSaving;
    ModelledPlan plan;
    if (is_modelled(dtype.split) &&
        plan_modelled(chunk, dtype, counts, false, offsets_in(out, chunk), plan) &&
        plan.bits + least_gain < ladder_bits && pays(plan.bits, counts.total, dtype)) {
        PayloadWriter modelled = limited(out, raw);
        if (encode_modelled(chunk, dtype, plan.tables, modelled, workspace) == Status::kOk) {
            out = modelled;
            codec = Codec::kModelled;
            return Status::kOk;
        }
    }
    if (encode_if_it_pays(chunk, dtype, tables, ladder_bits, counts.total, out, workspace)) {
        codec = Codec::kLadder;
        return Status::kOk;
    }
    return encode_raw(chunk.words, runs, dtype, out, n_normal);
}

// Codes words by kAuto's rules.
Status encode_by_sample(const ChunkWords& chunk, const Dtype& dtype, int level, PayloadWriter& out,
                        Workspace& workspace, Codec& codec) noexcept {
    codec = Codec::kRaw;
    if (dtype.split == Split::kNone) {
        return encode_whole_words(chunk, dtype, level, out, workspace, codec);
    }
    if (chunk.n_normal_words != 0) {
        return encode_floats(chunk, dtype, out, workspace, codec);
    }
    return encode_raw(chunk.words, NormalRuns(chunk.map, chunk.n_words), dtype, out, 0);
}

// The bytes that kAuto's codecs are expected to take for n_words words, given the bits of the
// exponents of `total`; 0 where only a try can say.
size_t expected_bytes(const Dtype& dtype, int64_t bits, uint32_t total,
                      uint32_t n_words) noexcept {
    const int64_t all_bits = bits + int64_t{total} * rest_bits(dtype.split);
    return total == 0 ? 0
                      : static_cast<size_t>(std::max<int64_t>(all_bits, 0)) * n_words / total / 8;
}

// What an estimate may be off by, as a share of it: of plain weights, which a sample shows well,
// ans saves 1 / 100; of words with low bits or rows and columns to leave out a sample shows less.
constexpr size_t kPlainDoubt = 300;
constexpr size_t kModelledDoubt = 30;

// Codes words by ans. Leaves in `expected` what kAuto's codecs are expected to take at least.
Status encode_by_ans(const ChunkWords& chunk, const Dtype& dtype, PayloadWriter& out,
                     Workspace& workspace, size_t& expected) noexcept {
    ExponentCounts counts;
    LadderTables tables;
    sample_exponents(chunk.words, chunk.map, chunk.n_words, dtype, counts);
    auto bits = static_cast<int64_t>(choose_tables(counts, tables));
    ModelledPlan plan;
    size_t doubt = kPlainDoubt;
    AnsModel model = {choose_ans_emax(counts), {}};
    if (plan_modelled(chunk, dtype, counts, false, offsets_in(out, chunk), plan)) {
        bits = std::min(bits, plan.bits);
        if (plan.tables.trims || plan.tables.prediction.columns != 0) {
            doubt = kModelledDoubt;
        }
        if (plan.tables.prediction.columns != 0) {
            model = {static_cast<uint8_t>(plan.tables.ladder.emax), plan.tables.prediction};
        }
    }
    expected = expected_bytes(dtype, bits, counts.total, chunk.n_normal_words);
    expected -= expected / doubt;
    return encode_ans(chunk, dtype, model, out, workspace);
}

// Whether kAuto's codecs may code words of up to 8 bits in fewer bytes than huffman. Of floats the
// counts of bytes tell: what a ladder takes follows from those of the exponents.
bool may_beat_huffman(const Dtype& dtype, const HuffmanPlan& plan, uint32_t n_words) noexcept {
    if (dtype.split == Split::kNone) {
        return true;
    }
    ExponentCounts counts = {dtype.split, {}, 0};
    for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
        counts.of[y >> split_bits(dtype.split).mantissa & max_exponent(dtype.split)] +=
            plan.occurrences[y];
        counts.total += plan.occurrences[y];
    }
    LadderTables tables;
    const auto bits = static_cast<int64_t>(choose_tables(counts, tables));
    return expected_bytes(dtype, bits, counts.total, n_words) < plan.n_bytes;
}

// Codes words of up to 8 bits by huffman or by kAuto's rules, whichever is smaller.
Status encode_smallest_bytes(const ChunkWords& chunk, const Dtype& dtype, int level,
                             PayloadWriter& out, Workspace& workspace, Codec& codec) noexcept {
    HuffmanPlan plan;
    plan_huffman(chunk, dtype, plan, workspace);
    const size_t raw = raw_bytes(dtype, chunk.n_normal_words);
    if (plan.n_bytes >= raw) {
        return encode_by_sample(chunk, dtype, level, out, workspace, codec);
    }
    if (may_beat_huffman(dtype, plan, chunk.n_normal_words)) {
        PayloadWriter other = out;
        other.limit_rest(plan.n_bytes - 1);
        const Status status = encode_by_sample(chunk, dtype, level, other, workspace, codec);
        if (status != Status::kNoSpace) {
            out = other;
            return status;
        }
    }
    PayloadWriter huffman = out;
    huffman.limit_rest(raw - 1);
    if (encode_huffman(chunk, dtype, plan, huffman, workspace) != Status::kOk) {
        return encode_by_sample(chunk, dtype, level, out, workspace, codec);
    }
    out = huffman;
    codec = Codec::kHuffman;
    return Status::kOk;
}

// Codes words with a split by ans or by kAuto's rules, whichever is smaller. The former is tried
// first: a sample says whether anything else can be smaller.
Status encode_smallest_floats(const ChunkWords& chunk, const Dtype& dtype, int level,
                              PayloadWriter& out, Workspace& workspace, Codec& codec) noexcept {
    const PayloadWriter before = out;
    size_t expected = 0;
    const auto by_ans = [&]() noexcept {
        out = before;
        out.limit_rest(raw_bytes(dtype, chunk.n_normal_words) - 1);
        codec = Codec::kAns;
        return encode_by_ans(chunk, dtype, out, workspace, expected);
    };
    if (by_ans() != Status::kOk) {
        out = before;
        return encode_by_sample(chunk, dtype, level, out, workspace, codec);
    }
    const size_t n_bytes = out.size() - before.size();
    if (expected > n_bytes) {
        return Status::kOk;
    }
    PayloadWriter other = before;
    other.limit_rest(n_bytes - 1);
    const Status status = encode_by_sample(chunk, dtype, level, other, workspace, codec);
    if (status == Status::kNoSpace) {
        return by_ans();  // the other try has overwritten it
    }
    out = other;
    return status;
}

// Of so few words kMax tries every codec: a sample does not say which is smallest by a few bytes.
constexpr uint32_t kFewWords = 8192;

// Codes few words with a split in every way and keeps the shortest.
Status encode_each_way(const ChunkWords& chunk, const Dtype& dtype, PayloadWriter& out,
                       Workspace& workspace, Codec& codec) noexcept {
    // Of these dtypes huffman codes those of up to 8 bits, which modelled and ans do not.
    constexpr CodecChoice kLess[] = {CodecChoice::kRaw, CodecChoice::kLadder,
                                     CodecChoice::kHuffman};
    constexpr CodecChoice kMore[] = {CodecChoice::kRaw, CodecChoice::kLadder, CodecChoice::kAuto,
                                     CodecChoice::kModelled, CodecChoice::kAns};
    const std::span<const CodecChoice> choices =
        is_modelled(dtype.split) ? std::span<const CodecChoice>(kMore)
                                 : std::span(kLess).first(is_huffman(dtype) ? 3 : 2);
    const auto code = [&](CodecChoice choice, uint32_t columns, PayloadWriter& to) noexcept {
        ChunkWords shaped = chunk;
        shaped.columns = columns;
        return encode_words(shaped, dtype, {choice}, to, workspace, codec);
    };
    CodecChoice best = CodecChoice::kRaw;
    uint32_t best_columns = 0;
    size_t least = SIZE_MAX;
    for (const uint32_t columns : {uint32_t{0}, chunk.columns}) {
        for (const CodecChoice choice : choices) {
            PayloadWriter to = out;
            to.limit_rest(least);
            if (code(choice, columns, to) == Status::kOk && to.size() - out.size() < least) {
                best = choice;
                best_columns = columns;
                least = to.size() - out.size();
            }
        }
        if (chunk.columns == 0) {
            break;
        }
    }
    return code(best, best_columns, out);
}

}  // namespace

ExpectedBits expect_floats(const ChunkWords& chunk, const Dtype& dtype,
                           PayloadWriter out) noexcept {
    ExponentCounts counts;
    LadderTables tables;
    sample_exponents(chunk.words, chunk.map, chunk.n_words, dtype, counts);
    auto bits = static_cast<int64_t>(choose_tables(counts, tables));
    ModelledPlan plan;
    if (is_modelled(dtype.split) &&
        plan_modelled(chunk, dtype, counts, false, offsets_in(out, chunk), plan)) {
        bits = std::min(bits, plan.bits);
    }
    const int64_t raw = int64_t{counts.total} * dtype.bits;
    const int64_t all = bits + int64_t{counts.total} * rest_bits(dtype.split);
    return {static_cast<uint64_t>(std::clamp<int64_t>(all, 0, raw)), counts.total};
}

Status encode_words(const ChunkWords& chunk, const Dtype& dtype, const EncodeOptions& options,
                    PayloadWriter& out, Workspace& workspace, Codec& codec) noexcept {
    const NormalRuns runs(chunk.map, chunk.n_words);
    const uint32_t n_normal = chunk.n_normal_words;
    const int level = options.zstd_level;
    codec = Codec::kRaw;
    if (options.codec == CodecChoice::kZstd) {
        codec = Codec::kZstd;
        return encode_zstd(chunk.words, runs, n_normal, dtype, level, out, workspace);
    }
    if (options.codec == CodecChoice::kHuffman) {
        codec = Codec::kHuffman;
        HuffmanPlan plan;
        plan_huffman(chunk, dtype, plan, workspace);
        return encode_huffman(chunk, dtype, plan, out, workspace);
    }
    if (options.codec == CodecChoice::kAuto) {
        return encode_by_sample(chunk, dtype, level, out, workspace, codec);
    }
    if (options.codec == CodecChoice::kMax && dtype.split != Split::kNone && n_normal != 0 &&
        n_normal <= kFewWords) {
        return encode_each_way(chunk, dtype, out, workspace, codec);
    }
    if (options.codec == CodecChoice::kMax && is_huffman(dtype) && n_normal != 0) {
        return encode_smallest_bytes(chunk, dtype, level, out, workspace, codec);
    }
    if (options.codec == CodecChoice::kMax && is_modelled(dtype.split) && n_normal != 0) {
        return encode_smallest_floats(chunk, dtype, level, out, workspace, codec);
    }
    if (options.codec == CodecChoice::kMax) {
        return encode_by_sample(chunk, dtype, level, out, workspace, codec);
    }
    if (options.codec == CodecChoice::kFast && dtype.split != Split::kNone && n_normal != 0) {
        return encode_floats_fast(chunk, dtype, out, workspace, codec);
    }
    if (options.codec == CodecChoice::kRaw || options.codec == CodecChoice::kFast) {
        return encode_raw(chunk.words, runs, dtype, out, n_normal);
    }
    ExponentCounts counts;
    sample_exponents(chunk.words, chunk.map, chunk.n_words, dtype, counts);
    if (options.codec == CodecChoice::kLadder) {
        codec = Codec::kLadder;
        LadderTables tables;
        choose_tables(counts, tables);
        return encode_ladder(chunk.words, runs, n_normal, dtype, tables, out, workspace);
    }
    ModelledPlan plan;
    plan_modelled(chunk, dtype, counts, true, offsets_in(out, chunk), plan);
    if (options.codec == CodecChoice::kAns) {
        codec = Codec::kAns;
        const Prediction& prediction = plan.tables.prediction;
        const auto emax = static_cast<uint8_t>(plan.tables.ladder.emax);
        const uint8_t alone = choose_ans_emax(counts);
        return encode_ans(chunk, dtype, {prediction.columns != 0 ? emax : alone, prediction}, out,
                          workspace);
    }
    codec = Codec::kModelled;
    return encode_modelled(chunk, dtype, plan.tables, out, workspace);
}

}  // namespace ogds
