#include "delta_sample.h"

#include <algorithm>

#include "delta_plan.h"
#include "delta_words.h"
#include "isa.h"

namespace ogds {
namespace {

// Of many words fewer groups than are sampled elsewhere say enough; chosen: so many, or one of so
// many words where that is more.
constexpr uint32_t kEnoughGroups = 64;
constexpr uint32_t kWordsAGroup = 8192;

// Of the words that are sampled, those of every group that tell whether they have decayed.
struct Decay {
    static constexpr uint32_t kOfGroup = 8;
    uint32_t n = 0;
    uint32_t words[DeltaSample::kMost / kGroupWords * kOfGroup];
    uint32_t base[DeltaSample::kMost / kGroupWords * kOfGroup];
};

uint32_t size_of(uint32_t word, uint32_t base) noexcept {
    using D = DeltaOf<uint32_t>;
    return 32 - static_cast<uint32_t>(
                    __builtin_clz(D::difference(word, base, 0, 0x7FFFFFFF) | 1));
}

// The decay that half of the words are above, if differences are that much smaller with it.
uint16_t choose_decay(const Decay& sample) noexcept {
    constexpr uint32_t kLeast = 64;         // words; fewer say nothing
    constexpr uint32_t kOneBitIn = 4;       // words, that it saves at the least
    static_assert(sizeof sample.words / sizeof sample.words[0] <= DeltaSample::kMost);
    int32_t decays[sizeof sample.words / sizeof sample.words[0]];
    for (uint32_t i = 0; i < sample.n; ++i) {
        const uint32_t lost = (sample.base[i] & 0x7FFFFFFF) - (sample.words[i] & 0x7FFFFFFF);
        const uint32_t mantissa = 1u << 23 | (sample.base[i] & 0x7FFFFF);
        const int64_t decay = int64_t{static_cast<int32_t>(lost)} * (1 << 24) / mantissa;
        decays[i] = static_cast<int32_t>(std::clamp<int64_t>(decay, -1, kMaxDecay + 1));
    }
    if (sample.n < kLeast) {
        return 0;
    }
    int32_t* const middle = decays + sample.n / 2;
    std::nth_element(decays, middle, decays + sample.n);
    if (*middle < 1 || *middle > static_cast<int32_t>(kMaxDecay)) {
        return 0;
    }
    const auto decay = static_cast<uint32_t>(*middle);
    int64_t saved = 0;
    for (uint32_t i = 0; i < sample.n; ++i) {
        saved += size_of(sample.words[i], sample.base[i]);
        saved -= size_of(sample.words[i], decayed(sample.base[i], decay));
    }
    return saved * kOneBitIn > sample.n ? static_cast<uint16_t>(decay) : 0;
}

template <class Word>
void add_words(const uint8_t* words, const uint8_t* base, uint32_t n, const DeltaFormat& format,
               DeltaSample& sample) noexcept {
    using D = DeltaOf<Word>;
    uint16_t* const values = sample.values + sample.n;
    uint8_t* const exponents = sample.exponents + sample.n;
    uint8_t least = sample.first_exponent;
    uint8_t most = sample.last_exponent;
    const DeltaFormat of = format;
    for (uint32_t i = 0; i < n; ++i) {
        const Word b = D::load(base, i);
        const uint64_t z =
            D::difference(D::load(words, i), b, of.shift, static_cast<Word>(of.flip));
        const auto zeros = static_cast<uint32_t>(__builtin_clzll(z | 1));
        const uint64_t value = 8 * (63 - zeros) + (z << zeros >> 60);
        values[i] = static_cast<uint16_t>(z == 0 ? 0 : value);
        const uint8_t exponent = exponent_of(b, of);
        exponents[i] = exponent;
        least = std::min(least, exponent);
        most = std::max(most, exponent);
    }
    sample.n += n;
    sample.first_exponent = least;
    sample.last_exponent = most;
}

// Calls use(first, n) for groups of the sample.
template <class Use>
void each_group(const ChunkWords& chunk, const Dtype& dtype, Use use) noexcept {
    const size_t word_bytes = dtype.container_bytes;
    const auto ahead = [&](uint32_t first) {
        for (size_t line = 0; line < kGroupWords * word_bytes; line += 64) {
            __builtin_prefetch(chunk.words + first * word_bytes + line);
            __builtin_prefetch(chunk.base + first * word_bytes + line);
        }
    };
    uint32_t n_groups = 0;
    each_sampled_group(chunk.map, chunk.n_words, [&](uint32_t, uint32_t) { ++n_groups; });
    const uint32_t enough = std::max(kEnoughGroups, chunk.n_normal_words / kWordsAGroup);
    const uint32_t one_in = std::max(1u, n_groups / enough);
    uint32_t n_calls = 0;
    each_sampled_group(
        chunk.map, chunk.n_words,
        [&](uint32_t first, uint32_t n) {
            if (n_calls++ % one_in == 0) {
                use(first, n);
            }
        },
        ahead);
}

// How many normal words are before a word of a normal block, asked for in ascending order.
class NormalPlace {
public:
    explicit NormalPlace(const uint8_t* map) noexcept : map_(map) {}

    uint32_t of(uint32_t word) noexcept {
        if (map_ == nullptr) {
            return word;
        }
        for (; block_ < word / kBlockWords; ++block_) {
            n_blocks_ += block_code(map_, block_) == BlockCode::kNormal ? 1 : 0;
        }
        return n_blocks_ * kBlockWords + word % kBlockWords;
    }

private:
    const uint8_t* map_;
    uint32_t block_ = 0;
    uint32_t n_blocks_ = 0;
};

}  // namespace

uint16_t find_decay(const ChunkWords& chunk, const Dtype& dtype) noexcept {
    using D = DeltaOf<uint32_t>;
    if (!may_decay(dtype)) {
        return 0;
    }
    Decay sample;
    each_group(chunk, dtype, [&](uint32_t first, uint32_t n) {
        for (uint32_t i = 0; i < std::min(n, Decay::kOfGroup); ++i) {
            sample.words[sample.n] = D::load(chunk.words, first + i);
            sample.base[sample.n++] = D::load(chunk.base, first + i);
        }
    });
    return choose_decay(sample);
}

void take_sample(const ChunkWords& chunk, const Dtype& dtype, uint32_t decay,
                 DeltaSample& sample) noexcept {
    const DeltaFormat format = delta_format(dtype);
    const size_t word_bytes = dtype.container_bytes;
    const uint32_t n_sub_blocks = (chunk.n_normal_words + kSubBlockWords - 1) / kSubBlockWords;
    sample.n_scales = std::min(n_sub_blocks, DeltaPlan::kMostScales);
    uint32_t scale = 0;
    NormalPlace place(chunk.map);
    each_group(chunk, dtype, [&](uint32_t first, uint32_t n) {
        const uint32_t of_group = scale_at(std::min(place.of(first), chunk.n_normal_words - 1),
                                           chunk.n_normal_words, sample.n_scales);
        for (; scale < of_group; ++scale) {
            sample.ends[scale] = sample.n;
        }
        const uint8_t* words = chunk.words + first * word_bytes;
        const uint8_t* base = chunk.base + first * word_bytes;
        uint8_t left[kGroupWords * sizeof(uint32_t)];
        if (decay != 0) {
            kernels().delta->decay(base, n, decay, left);
            base = left;
        }
        switch (word_bytes) {
            case 1: return add_words<uint8_t>(words, base, n, format, sample);
            case 2: return add_words<uint16_t>(words, base, n, format, sample);
            case 4: return add_words<uint32_t>(words, base, n, format, sample);
            default: return add_words<uint64_t>(words, base, n, format, sample);
        }
    });
    for (; scale < sample.n_scales; ++scale) {
        sample.ends[scale] = sample.n;
    }
}

}  // namespace ogds
