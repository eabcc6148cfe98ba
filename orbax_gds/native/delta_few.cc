#include "delta_few.h"

#include "delta_words.h"

namespace ogds {
namespace {

constexpr uint32_t kAhead = 16;  // words whose lines are asked for before they are changed

// Where changed words lie in a chunk.
class ChangedPlaces {
public:
    ChangedPlaces(const ChangedWords& changed, uint32_t m, NormalRuns& runs) noexcept
        : changed_(changed), m_(m), runs_(runs) {}

    // Of the next one.
    size_t next() noexcept {
        const uint32_t i = changed_.at[n_++];
        while (i - begin_ >= run_.n_words) {
            take_run();
        }
        return size_t{run_.first} + (i - begin_);
    }

    // Goes to the end of the sub-block.
    void finish() noexcept {
        while (begin_ + run_.n_words < m_) {
            take_run();
        }
    }

private:
    void take_run() noexcept {
        begin_ += run_.n_words;
        run_ = runs_.next(m_ - begin_);
    }

    const ChangedWords& changed_;
    uint32_t m_;
    NormalRuns& runs_;
    uint32_t n_ = 0;
    uint32_t begin_ = 0;  // of the run, in the sub-block
    Run run_ = {0, 0};
};

template <class Word>
bool merge(const ChangedWords& changed, const RankPlanes& ranks, uint32_t m,
           const DeltaFormat& format, const DeltaTables& tables, const uint8_t* escapes,
           uint32_t n_escapes, NormalRuns& runs, uint8_t* words) noexcept {
    using D = DeltaOf<Word>;
    const auto flip = static_cast<Word>(format.flip);
    const Word largest = D::largest(format.bits, 0);
    ChangedPlaces places(changed, m, runs);
    size_t ahead[kAhead];
    uint32_t n_taken = 0;
    bool fits = true;
    for (uint32_t i = 0; i < changed.n + kAhead; ++i) {
        size_t& place = ahead[i % kAhead];
        if (i >= kAhead) {
            const uint32_t rank = rank_at(ranks, changed.at[i - kAhead]);
            Word z = tables.ladder.symbol_of_rank[rank];
            if (rank == tables.ladder.escape_rank) {
                if (n_taken == n_escapes) {
                    return false;
                }
                z = D::load(escapes, n_taken++);
            }
            fits = fits && z <= largest;
            D::store(words, place, D::word(z, D::load(words, place), format.shift, flip));
        }
        if (i < changed.n) {
            place = places.next();
            __builtin_prefetch(words + place * sizeof(Word), 1);
        }
    }
    places.finish();
    return fits && n_taken == n_escapes;
}

}  // namespace

bool has_unchanged_symbol(const DeltaTables& tables) noexcept {
    return !tables.exponents && tables.ladder.emax == 0 && tables.low_bytes == 0 &&
           tables.decay == 0;
}

bool find_few(const RankPlanes& ranks, uint32_t m, const DeltaTables& tables,
              ChangedWords& changed) noexcept {
    const uint32_t rank = tables.ladder.rank_of_symbol[0];
    uint64_t same[4];
    for (uint32_t b = 0; b < 4; ++b) {
        same[b] = (rank >> b & 1) != 0 ? ~uint64_t{0} : 0;
    }
    const uint32_t most = m / (kSubBlockWords / ChangedWords::kMost);
    changed.n = 0;
    for (uint32_t g = 0; 64 * g < m; ++g) {
        uint64_t found = 0;
        for (uint32_t b = 0; b < 4; ++b) {
            found |= ranks.bit[b][g] ^ same[b];
        }
        found &= m - 64 * g < 64 ? low_bits(m - 64 * g) : ~uint64_t{0};
        for (; found != 0; found &= found - 1) {
            if (changed.n == most) {
                return false;
            }
            changed.at[changed.n++] =
                static_cast<uint16_t>(64 * g + static_cast<uint32_t>(__builtin_ctzll(found)));
        }
    }
    return true;
}

bool merge_few(const ChangedWords& changed, const RankPlanes& ranks, uint32_t m,
               const DeltaFormat& format, const DeltaTables& tables, const uint8_t* escapes,
               uint32_t n_escapes, const LowBitsView& below, NormalRuns& runs,
               uint8_t* words) noexcept {
    for (uint32_t plane = 0; plane < below.n; ++plane) {
        if (below.n_bits[plane] != 0) {
            return false;
        }
    }
    const auto with = [&]<class Word>(Word) {
        return merge<Word>(changed, ranks, m, format, tables, escapes, n_escapes, runs, words);
    };
    switch (format.bits + format.shift) {
        case 8: return with(uint8_t{});
        case 16: return with(uint16_t{});
        case 32: return with(uint32_t{});
        default: return with(uint64_t{});
    }
}

}  // namespace ogds
