#include "choice_delta.h"

#include <algorithm>

#include "delta_plan.h"
#include "zstd.h"

namespace ogds {
namespace {

// By choice a delta saves this share of what its words take without the base: for it a restore reads
// and decodes the base, and what that follows from. Measured: differences of weights save 20 % and
// more, most of those of moments 5 to 15 %.
constexpr uint64_t kMinSaving = 6;
// Where the base is needed anyway.
constexpr uint64_t kMinFurtherSaving = 50;
// What it may be longer than expected: then its words are coded without the base after all.
constexpr size_t kDoubt = 16;

bool is_forced(CodecChoice codec) noexcept {
    return codec != CodecChoice::kAuto && codec != CodecChoice::kFast &&
           codec != CodecChoice::kMax;
}

constexpr uint64_t min_saving(bool needs_base) noexcept {
    return needs_base ? kMinFurtherSaving : kMinSaving;
}

// Codes as a delta in at most so many bytes.
Status encode_within(const ChunkWords& chunk, const Dtype& dtype, const DeltaPlan& plan,
                     size_t most, PayloadWriter& out, Workspace& workspace,
                     Codec& codec) noexcept {
    PayloadWriter delta = out;
    delta.limit_rest(most);
    const Status status = encode_delta(chunk, chunk.base, dtype, plan, delta, workspace);
    if (status == Status::kOk) {
        out = delta;
        codec = Codec::kDelta;
    }
    return status;
}

// Codes what a delta is not worth; without other need of a base the frame is to do without.
Status encode_directly(const ChunkWords& chunk, const Dtype& dtype, const EncodeOptions& options,
                       bool needs_base, PayloadWriter& out, Workspace& workspace,
                       Codec& codec) noexcept {
    return needs_base ? encode_words(chunk, dtype, options, out, workspace, codec)
                      : Status::kNoSpace;
}

size_t share_of(size_t n_bytes, uint64_t bits, uint64_t all_bits) noexcept {
    return all_bits == 0 ? n_bytes : static_cast<size_t>(n_bytes * bits / all_bits);
}

// Words without a split: only a try says what zstd makes of them.
Status encode_integers(const ChunkWords& chunk, const Dtype& dtype, const EncodeOptions& options,
                       const DeltaPlan& plan, bool needs_base, PayloadWriter& out,
                       Workspace& workspace, Codec& codec) noexcept {
    const PayloadWriter before = out;
    Status status = encode_words(chunk, dtype, options, out, workspace, codec);
    const bool is_coded = status == Status::kOk;
    const size_t n_bytes = is_coded ? out.size() - before.size() : before.room();
    PayloadWriter delta = before;
    if (encode_within(chunk, dtype, plan, n_bytes - n_bytes / min_saving(needs_base), delta,
                      workspace, codec) == Status::kOk) {
        out = delta;
        return Status::kOk;
    }
    out = before;  // the other try has overwritten it
    return is_coded ? encode_directly(chunk, dtype, options, needs_base, out, workspace, codec)
                    : status;
}

}  // namespace

bool are_worth_base(const MapCounts& counts, const EncodeOptions& options) noexcept {
    const uint64_t same_words = uint64_t{kBlockWords} * counts.n_same;
    const bool by_choice =
        !is_forced(options.codec) && options.block_map == MapChoice::kWhenSmaller;
    return same_words > 0 &&
           (!by_choice || same_words * kMinSaving >= same_words + counts.n_normal_words);
}

Status encode_delta_words(const ChunkWords& chunk, const Dtype& dtype,
                          const EncodeOptions& options, bool needs_base, PayloadWriter& out,
                          Workspace& workspace, Codec& codec) noexcept {
    const bool is_wanted = options.codec == CodecChoice::kDelta;
    if (chunk.n_normal_words == 0) {
        codec = is_wanted ? Codec::kDelta : Codec::kRaw;
        return needs_base || is_wanted ? Status::kOk : Status::kNoSpace;
    }
    if (is_forced(options.codec) && !is_wanted) {
        return encode_directly(chunk, dtype, options, needs_base, out, workspace, codec);
    }
    DeltaPlan plan;
    const DeltaEstimate delta = plan_delta(chunk, dtype, plan);
    if (is_wanted) {
        return encode_within(chunk, dtype, plan, out.room(), out, workspace, codec);
    }
    const uint64_t raw_bits = uint64_t{delta.total} * dtype.bits;
    const size_t raw = raw_bytes(dtype, chunk.n_normal_words);
    ExpectedBits direct = {raw_bits, delta.total};
    if (dtype.split != Split::kNone && delta.bits * 4 > raw_bits) {
        const ExpectedBits all = expect_floats(chunk, dtype, out);  // of a sample of its own
        direct.bits = all.total == 0 ? raw_bits : all.bits * delta.total / all.total;
    }
    if (delta.bits + direct.bits / min_saving(needs_base) < direct.bits) {
        if (dtype.split == Split::kNone) {
            return encode_integers(chunk, dtype, options, plan, needs_base, out, workspace, codec);
        }
        const size_t expected = share_of(raw, direct.bits, raw_bits);
        const size_t most =
            std::min(raw, expected + expected / kDoubt) - expected / min_saving(needs_base);
        if (encode_within(chunk, dtype, plan, most, out, workspace, codec) == Status::kOk) {
            return Status::kOk;
        }
    }
    return encode_directly(chunk, dtype, options, needs_base, out, workspace, codec);
}

}  // namespace ogds
