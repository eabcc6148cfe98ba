// Splitting and merging for any register V (vector_*.h): groups of 128 words a lane.
//
// Include only from files of one instruction set. Everything here is in an unnamed namespace: the
// linker must not merge it with a copy that other files were given by other instruction sets.
#pragma once

#include "bit_planes.h"
#include "bytes.h"
#include "ladder_formats.h"
#include "ladder_kernels.h"

namespace ogds {
namespace {

// How a format's bitmaps and the planes of the ranks share registers of eight bits.
template <class F>
struct Bitmaps {
    static constexpr FieldPlanes kPlanes = field_planes(rest_bits(F::kSplit));
    static constexpr uint32_t kN = F::kLowBits + (F::kSignBitmap ? 1 : 0);
    static constexpr uint32_t kFirst = kPlanes.n - kN;  // of the planes, the first bitmap
    // With the ranks above the low bits all is one transposition.
    static constexpr bool kJoint = kN > 0 && F::kLowBits + 4 <= (F::kSignBitmap ? 7 : 8);
    static constexpr uint32_t kRankShift = kJoint ? F::kLowBits : 0;

    // The bit of Part::bits that bitmap b holds.
    static constexpr uint32_t bit_of(uint32_t b) noexcept {
        if (F::kSignBitmap) {
            return b == 0 ? 7 : F::kLowBits - b;
        }
        return F::kLowBits - 1 - b;
    }
};

// Pointers to the planes of the fields, moving on from group to group.
template <class Byte, class F>
struct PlaneCursor {
    static constexpr FieldPlanes kPlanes = Bitmaps<F>::kPlanes;
    Byte* at[FieldPlanes::kMost] = {};

    PlaneCursor(Byte* fields, uint32_t m) noexcept {
        for (uint32_t p = 0; p < kPlanes.n; ++p) {
            at[p] = fields;
            fields += plane_bytes(kPlanes.bits[p], m);
        }
    }
    void advance(uint32_t n_words) noexcept {
        for (uint32_t p = 0; p < kPlanes.n; ++p) {
            at[p] += plane_bytes(kPlanes.bits[p], n_words);
        }
    }
};

template <class V>
constexpr uint32_t group_words() noexcept { return V::kBytes * 8; }

// Bit i set: value i of the group is the escape rank.
template <class V>
inline typename V::T escapes_of(const typename V::T (&ranks)[4],
                                const typename V::T (&flips)[4]) noexcept {
    return V::and_(V::and_(V::xor_(ranks[0], flips[0]), V::xor_(ranks[1], flips[1])),
                   V::and_(V::xor_(ranks[2], flips[2]), V::xor_(ranks[3], flips[3])));
}

template <class V>
inline void set_flips(uint32_t escape_rank, typename V::T (&flips)[4]) noexcept {
    for (uint32_t b = 0; b < 4; ++b) {
        flips[b] = V::splat((escape_rank >> b) & 1 ? 0 : 0xFF);
    }
}

template <class F>
inline uint64_t load_word(const uint8_t* words, size_t i) noexcept {
    uint64_t word = 0;
    __builtin_memcpy(&word, words + F::kWordBytes * i, F::kWordBytes);
    return word;
}

// Calls fn(i) for the bits set of the first n_words of a group, in order.
template <class V, class Fn>
inline void for_each_bit(typename V::T plane, uint32_t n_words, Fn fn) noexcept {
    uint8_t bytes[V::kBytes];
    V::store_whole(bytes, plane);
    for (uint32_t first = 0; first < n_words; first += 64) {
        uint64_t bits = load_u64le(bytes + first / 8) & low_bits(n_words - first);
        for (; bits != 0; bits &= bits - 1) {
            fn(first + static_cast<uint32_t>(__builtin_ctzll(bits)));
        }
    }
}

template <class V, class F>
struct SplitTables {
    // Four bits of exponent index the table of ranks themselves: no window is needed.
    static constexpr bool kByExponent = !F::kSymbols && max_exponent(F::kSplit) < 16;

    uint32_t emax;
    typename V::T emaxes;
    typename V::T rank_of;  // by symbol, or by exponent; shifted to where the format wants it
    typename V::T flips[4];

    explicit SplitTables(const LadderTables& header) noexcept
        : emax(header.emax), emaxes(V::splat(header.emax & 0xFF)) {
        alignas(16) uint8_t ranks[16];
        for (uint32_t i = 0; i < 16; ++i) {
            uint32_t symbol = i;
            if constexpr (kByExponent) {
                symbol = (header.emax - i) & max_exponent(F::kSplit);
            }
            ranks[i] = static_cast<uint8_t>(header.rank_of_symbol[symbol]
                                            << Bitmaps<F>::kRankShift);
        }
        rank_of = V::table(ranks);
        set_flips<V>(header.escape_rank, flips);
    }

    // FORMAT 7.4.
    typename V::T ranks(typename V::T exponent) const noexcept {
        if constexpr (F::kSymbols || kByExponent) {
            return V::lookup(rank_of, exponent);
        } else {
            return V::lookup(rank_of, V::min8(difference(emaxes, exponent),
                                              V::splat(kEscapeSymbol)));
        }
    }

    // FORMAT 7.6.
    typename V::T ranks(typename V::T exponent, typename V::T prediction) const noexcept {
        const auto zero = V::splat(kZeroSymbol);
        const auto cut = V::min8(difference(prediction, exponent), zero);
        const auto symbol = V::sub8(cut, V::equal8(cut, zero));  // 14 and more become 15
        return V::lookup(rank_of, V::select(V::equal8(exponent, V::splat(0)), zero, symbol));
    }

private:
    static typename V::T difference(typename V::T from, typename V::T exponent) noexcept {
        const auto d = V::sub8(from, exponent);
        return max_exponent(F::kSplit) < 255 ? V::and_(d, V::splat(max_exponent(F::kSplit))) : d;
    }
};

// Splits a group of words; returns the plane of its escapes.
template <class V, class F, bool kPredicted>
inline typename V::T split_group(const uint8_t* words, const SplitTables<V, F>& tables,
                                 const uint8_t* prediction, uint8_t* const* planes,
                                 uint8_t* ranks_out) noexcept {
    using B = Bitmaps<F>;
    typename V::T ranks[8];
    typename V::T bits[8];
    for (uint32_t q = 0; q < 8; ++q) {
        const Part<V> part = F::template take<V>(words, q, tables.emax, planes);
        if constexpr (kPredicted) {
            ranks[q] = tables.ranks(part.exponent, V::load(prediction + 16 * q, kLaneWords));
        } else {
            ranks[q] = tables.ranks(part.exponent);
        }
        bits[q] = B::kJoint ? V::or_(part.bits, ranks[q]) : part.bits;
    }
    if constexpr (B::kN > 0) {
        to_planes<V>(bits);
        for (uint32_t b = 0; b < B::kN; ++b) {
            V::store_whole(planes[B::kFirst + b], bits[B::bit_of(b)]);
        }
    }
    typename V::T rank_planes[4];
    if constexpr (B::kJoint) {
        for (uint32_t b = 0; b < 4; ++b) {
            rank_planes[b] = bits[B::kRankShift + b];
        }
    } else {
        to_planes4<V>(ranks, rank_planes);
    }
    for (uint32_t b = 0; b < 4; ++b) {
        V::store_whole(ranks_out + sizeof(RankPlanes::bit[0]) * b, rank_planes[b]);
    }
    return escapes_of<V>(rank_planes, tables.flips);
}

template <class F>
inline uint32_t append_escape(const uint8_t* words, size_t i, uint8_t* escapes,
                              uint32_t n_escapes) noexcept {
    const uint64_t exponent = load_word<F>(words, i) >> split_bits(F::kSplit).mantissa &
                              max_exponent(F::kSplit);
    __builtin_memcpy(escapes + escape_bytes(F::kSplit) * size_t{n_escapes}, &exponent,
                     escape_bytes(F::kSplit));
    return n_escapes + 1;
}

// Asks for the words that come soon: no hardware foresees the order in which a group is read. Past
// the end it does no harm.
inline void prefetch_words(const uint8_t* words, uint32_t n_bytes) noexcept {
    constexpr uint32_t kAheadBytes = 2048;
    const auto ahead = reinterpret_cast<uintptr_t>(words) + kAheadBytes;  // of no array
#pragma GCC unroll 16
    for (uint32_t line = 0; line < n_bytes; line += 64) {
        __builtin_prefetch(reinterpret_cast<const void*>(ahead + line));
    }
}

template <class V, class F, bool kPredicted>
inline uint32_t split_words(const uint8_t* words, uint32_t m, const LadderTables& header,
                            const uint8_t* prediction, uint8_t* fields, RankPlanes& ranks,
                            uint8_t* escapes) noexcept {
    constexpr uint32_t kGroup = group_words<V>();
    const SplitTables<V, F> tables(header);
    PlaneCursor<uint8_t, F> planes(fields, m);
    auto* ranks_out = reinterpret_cast<uint8_t*>(&ranks);
    uint32_t n_escapes = 0;
    uint32_t i = 0;
    const auto append = [&](typename V::T found, const uint8_t* group, uint32_t n_words) {
        for_each_bit<V>(found, n_words, [&](uint32_t at) {
            n_escapes = append_escape<F>(group, at, escapes, n_escapes);
        });
    };
    for (; i + kGroup <= m; i += kGroup) {
        const uint8_t* group = words + F::kWordBytes * i;
        prefetch_words(group, F::kWordBytes * kGroup);
        const uint8_t* predicted = kPredicted ? prediction + i : nullptr;
        const auto found = split_group<V, F, kPredicted>(group, tables, predicted, planes.at,
                                                         ranks_out + i / 8);
        planes.advance(kGroup);
        if (__builtin_expect(V::any(found), 0)) {
            append(found, group, kGroup);
        }
    }
    if (i < m) {
        const uint32_t rest = m - i;
        uint8_t group[F::kWordBytes * kGroup] = {};
        uint8_t predicted[kGroup] = {};
        uint8_t group_fields[fields_bytes(rest_bits(F::kSplit), kGroup) + 1];
        PlaneCursor<uint8_t, F> from(group_fields, kGroup);
        __builtin_memcpy(group, words + F::kWordBytes * i, F::kWordBytes * rest);
        if constexpr (kPredicted) {
            __builtin_memcpy(predicted, prediction + i, rest);
        }
        append(split_group<V, F, kPredicted>(group, tables, predicted, from.at, ranks_out + i / 8),
               group, rest);
        for (uint32_t p = 0; p < Bitmaps<F>::kPlanes.n; ++p) {
            __builtin_memcpy(planes.at[p], from.at[p],
                             plane_bytes(Bitmaps<F>::kPlanes.bits[p], rest));
        }
    }
    return n_escapes;
}

template <class V, class F>
struct MergeTables {
    uint32_t emax;
    typename V::T of_rank;  // exponents; with a prediction, and for kSymbols, symbols
    typename V::T signs;
    typename V::T flips[4];

    MergeTables(const LadderTables& header, bool predicted) noexcept
        : emax(header.emax), signs(V::splat(header.sign_slot ? 0 : 0x80)) {
        alignas(16) uint8_t values[16];
        for (uint32_t rank = 0; rank < 16; ++rank) {
            const uint32_t symbol = header.symbol_of_rank[rank];
            const uint32_t exponent = (header.emax - symbol) & max_exponent(F::kSplit);
            values[rank] = static_cast<uint8_t>(predicted || F::kSymbols ? symbol : exponent);
        }
        of_rank = V::table(values);
        set_flips<V>(header.escape_rank, flips);
    }

    // FORMAT 7.6.
    typename V::T exponents(typename V::T symbol, typename V::T prediction) const noexcept {
        const auto exponent = V::and_(V::sub8(prediction, symbol),
                                      V::splat(max_exponent(F::kSplit)));
        return V::select(V::equal8(symbol, V::splat(kZeroSymbol)), V::splat(0), exponent);
    }
};

// Merges a group of words; returns the plane of its escapes, whose exponents are still to come.
template <class V, class F, bool kPredicted>
inline typename V::T merge_group(const uint8_t* ranks_in, const MergeTables<V, F>& tables,
                                 const uint8_t* prediction, const uint8_t* const* planes,
                                 uint8_t* words) noexcept {
    using B = Bitmaps<F>;
    typename V::T rank_planes[4];
    typename V::T ranks[8];
    typename V::T bits[8];
    for (uint32_t b = 0; b < 4; ++b) {
        rank_planes[b] = V::load_whole(ranks_in + sizeof(RankPlanes::bit[0]) * b);
    }
    for (auto& plane : bits) {
        plane = V::splat(0);
    }
    if constexpr (B::kN > 0) {
        for (uint32_t b = 0; b < B::kN; ++b) {
            bits[B::bit_of(b)] = V::load_whole(planes[B::kFirst + b]);
        }
        for (uint32_t b = 0; B::kJoint && b < 4; ++b) {
            bits[B::kRankShift + b] = rank_planes[b];
        }
        from_planes<V>(bits);
    }
    if constexpr (!B::kJoint) {
        from_planes4<V>(rank_planes, ranks);
    }
    for (uint32_t q = 0; q < 8; ++q) {
        if constexpr (B::kJoint) {
            ranks[q] = V::and_(V::template right16<B::kRankShift>(bits[q]), V::splat(0x0F));
        }
        auto exponent = V::lookup(tables.of_rank, ranks[q]);
        if constexpr (kPredicted) {
            exponent = tables.exponents(exponent, V::load(prediction + 16 * q, kLaneWords));
        }
        F::template put<V>({exponent, bits[q]}, tables.signs, q, tables.emax, planes, words);
    }
    return escapes_of<V>(rank_planes, tables.flips);
}

// Gives a word that lies there the next escaped exponent. False if there is none.
template <class F>
inline bool patch_escape(uint8_t* words, size_t i, const uint8_t* escapes, uint32_t n_escapes,
                         uint32_t& n_taken) noexcept {
    constexpr uint32_t kShift = split_bits(F::kSplit).mantissa;
    constexpr uint64_t kMask = uint64_t{max_exponent(F::kSplit)} << kShift;
    if (n_taken == n_escapes) {
        return false;
    }
    uint64_t exponent = 0;
    __builtin_memcpy(&exponent, escapes + escape_bytes(F::kSplit) * size_t{n_taken++},
                     escape_bytes(F::kSplit));
    const uint64_t word = (load_word<F>(words, i) & ~kMask) | (exponent << kShift & kMask);
    __builtin_memcpy(words + F::kWordBytes * i, &word, F::kWordBytes);
    return true;
}

// Asks for bytes in so many steps of equal size.
class Prefetcher {
public:
    Prefetcher(const Ahead& ahead, uint32_t n_steps) noexcept
        : at_(ahead.at), n_lines_(n_steps == 0 ? 0 : (ahead.n_bytes / n_steps + 63) / 64) {}

    void step() noexcept {
        for (size_t line = 0; line < n_lines_; ++line, at_ += 64) {
            __builtin_prefetch(at_);
        }
    }

private:
    const uint8_t* at_;
    size_t n_lines_;
};

// Copies a group past the caches, to a multiple of 16 bytes.
template <class V>
inline void stream_group(uint8_t* to, const uint8_t* from, uint32_t n_bytes) noexcept {
    uint32_t at = 0;
    if constexpr (V::kBytes > 16) {
        if (reinterpret_cast<uintptr_t>(to) % V::kBytes != 0) {
            V::stream_half(to, from);
            at = 16;
        }
    }
    for (; n_bytes - at >= 4 * V::kBytes; at += 4 * V::kBytes) {
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t part = at + i * V::kBytes;
            V::stream_whole(to + part, V::load_whole(from + part));
        }
    }
    for (; n_bytes - at >= V::kBytes; at += V::kBytes) {
        V::stream_whole(to + at, V::load_whole(from + at));
    }
    if constexpr (V::kBytes > 16) {
        if (at < n_bytes) {
            V::stream_half(to + at, from + at);
        }
    }
}

template <class V, class F, bool kPredicted>
inline bool merge_words(const RankPlanes& ranks, uint32_t m, Slice slice,
                        const LadderTables& header, const uint8_t* prediction,
                        const uint8_t* fields, Escapes& escapes,
                        const MergeTarget& target) noexcept {
    static_assert(kSliceStep % group_words<V>() == 0);
    constexpr uint32_t kGroup = group_words<V>();
    constexpr uint32_t kGroupBytes = F::kWordBytes * kGroup;
    const MergeTables<V, F> tables(header, kPredicted);
    PlaneCursor<const uint8_t, F> planes(fields, m);
    planes.advance(slice.first);
    const uint8_t* ranks_in = reinterpret_cast<const uint8_t*>(&ranks) + slice.first / 8;
    uint32_t n_taken = 0;
    uint32_t i = 0;
    bool enough = true;
    const auto patch = [&](typename V::T found, uint8_t* group, uint32_t n_words) {
        for_each_bit<V>(found, n_words, [&](uint32_t at) {
            enough = enough && patch_escape<F>(group, at, escapes.at, escapes.n, n_taken);
        });
    };
    uint8_t* words = target.words;
    Prefetcher ahead(target.ahead, slice.n_words / kGroup);
    alignas(64) uint8_t staged[kGroupBytes];
    for (; i + kGroup <= slice.n_words; i += kGroup, words += kGroupBytes) {
        ahead.step();
        uint8_t* group = target.past_caches ? staged : words;
        const uint8_t* predicted = kPredicted ? prediction + i : nullptr;
        const auto found = merge_group<V, F, kPredicted>(ranks_in + i / 8, tables, predicted,
                                                         planes.at, group);
        planes.advance(kGroup);
        if (__builtin_expect(V::any(found), 0)) {
            patch(found, group, kGroup);
        }
        if (target.past_caches) {
            stream_group<V>(words, staged, kGroupBytes);
        }
    }
    if (i < slice.n_words) {
        const uint32_t rest = slice.n_words - i;
        uint8_t* group = staged;
        uint8_t predicted[kGroup] = {};
        uint8_t group_fields[fields_bytes(rest_bits(F::kSplit), kGroup) + 1] = {};
        PlaneCursor<uint8_t, F> to(group_fields, kGroup);
        for (uint32_t p = 0; p < Bitmaps<F>::kPlanes.n; ++p) {
            __builtin_memcpy(to.at[p], planes.at[p],
                             plane_bytes(Bitmaps<F>::kPlanes.bits[p], rest));
        }
        if constexpr (kPredicted) {
            __builtin_memcpy(predicted, prediction + i, rest);
        }
        patch(merge_group<V, F, kPredicted>(ranks_in + i / 8, tables, predicted, to.at, group),
              group, rest);
        __builtin_memcpy(words, group, F::kWordBytes * rest);
    }
    if (slice.first + slice.n_words == m) {
        V::fence();
    }
    escapes.at += escape_bytes(F::kSplit) * size_t{n_taken};
    escapes.n -= n_taken;
    return enough;
}

template <class V, class F>
uint32_t split(const uint8_t* words, uint32_t m, const LadderTables& tables,
               const uint8_t* prediction, uint8_t* fields, RankPlanes& ranks,
               uint8_t* escapes) noexcept {
    if constexpr (F::kPredicted) {
        if (prediction != nullptr) {
            return split_words<V, F, true>(words, m, tables, prediction, fields, ranks, escapes);
        }
    }
    return split_words<V, F, false>(words, m, tables, nullptr, fields, ranks, escapes);
}

template <class V, class F>
bool merge(const RankPlanes& ranks, uint32_t m, Slice slice, const LadderTables& tables,
           const uint8_t* prediction, const uint8_t* fields, Escapes& escapes,
           const MergeTarget& target) noexcept {
    if constexpr (F::kPredicted) {
        if (prediction != nullptr) {
            return merge_words<V, F, true>(ranks, m, slice, tables, prediction, fields, escapes,
                                           target);
        }
    }
    return merge_words<V, F, false>(ranks, m, slice, tables, nullptr, fields, escapes, target);
}

}  // namespace
}  // namespace ogds
