// The ladder: famous words, every exponent, every possible header.
#include <algorithm>
#include <cstring>

#include "bytes.h"
#include "ladder.h"
#include "laws.h"
#include "payload.h"

using namespace ogds;

namespace {

void comes_back(const Bytes& words, uint8_t dtype) {
    ogds::comes_back(words, dtype, {CodecChoice::kLadder, MapChoice::kNever});
}

std::vector<uint8_t> dtypes_with_split() {
    std::vector<uint8_t> ids;
    for (uint8_t id : all_dtypes()) {
        if (dtype_of(id).split != Split::kNone) {
            ids.push_back(id);
        }
    }
    return ids;
}

void every_word_comes_back() {
    for (uint8_t dtype : dtypes_with_split()) {
        const uint32_t bits = dtype_of(dtype).bits;
        if (bits > 16) {
            continue;
        }
        Bytes words;
        for (uint32_t i = 0; i < std::max(1u << bits, 2000u); ++i) {
            const uint32_t word = i * 40503 & ((1u << bits) - 1);  // a permutation
            words.push_back(static_cast<uint8_t>(word));
            if (bits == 16) {
                words.push_back(static_cast<uint8_t>(word >> 8));
            }
        }
        comes_back(words, dtype);
    }
}

void every_sign_and_exponent_comes_back(uint8_t dtype) {
    const SplitBits bits = split_bits(dtype_of(dtype).split);
    const uint32_t word_bytes = dtype_of(dtype).container_bytes;
    const uint64_t ones = (uint64_t{1} << bits.mantissa) - 1;
    Bytes words;
    Random random(9);
    for (uint64_t top = 0; top < uint64_t{2} << bits.exponent; ++top) {
        for (uint64_t mantissa : {uint64_t{0}, uint64_t{1}, ones, ones / 2 + 1, ones / 2,
                                  random.next() & ones}) {
            words.resize(words.size() + word_bytes);
            store_partial_u64le(words.data() + words.size() - word_bytes, word_bytes,
                                top << bits.mantissa | mantissa);
        }
    }
    comes_back(words, dtype);
}

// All escapes in one sub-block, none in the next; all words the same rank; one word in a level.
void extremes_come_back() {
    for (uint32_t n_words : {kSubBlockWords, kSubBlockWords + 1, 2 * kSubBlockWords}) {
        Bytes words = make_words(16, n_words, Look::kNarrow, 2);
        for (uint32_t i = 0; i < kSubBlockWords; ++i) {
            store_u16le(words.data() + 2 * i, static_cast<uint16_t>(i % 90 << 7));
        }
        comes_back(words, 16);
        comes_back(make_words(16, n_words, Look::kConstant, 2), 16);
        comes_back(make_words(18, n_words, Look::kWide, 2), 18);
        comes_back(make_words(32, n_words, Look::kRandom, 2), 32);
    }
}

struct SplitWords {
    uint32_t n_escapes;
    Bytes fields;
    Bytes ranks;
    Bytes escapes;
    bool operator==(const SplitWords&) const = default;
};

Bytes first_bits(const RankPlanes& planes, uint32_t n) {
    Bytes bytes;
    for (const auto& plane : planes.bit) {
        for (uint32_t at = 0; at < n; at += 64) {
            bytes.resize(bytes.size() + 8);
            store_u64le(bytes.data() + bytes.size() - 8, plane[at / 64] & low_bits(n - at));
        }
    }
    return bytes;
}

// Symbols of FORMAT 7.6: all kernels agree, and the words come back.
void predicted_words_come_back(uint8_t id, uint32_t m, Look look, bool near) {
    const Dtype& dtype = dtype_of(id);
    const auto split = static_cast<size_t>(dtype.split);
    const Bytes words = make_words(id, m, look, m);
    Random random(m);
    Bytes prediction(m);
    for (uint32_t i = 0; i < m; ++i) {
        uint64_t word = 0;
        std::memcpy(&word, words.data() + size_t{i} * dtype.container_bytes,
                    dtype.container_bytes);
        const uint64_t exponent = word >> split_bits(dtype.split).mantissa;
        const uint64_t p = near ? exponent + random.below(14) : random.next();
        prediction[i] = static_cast<uint8_t>(p & max_exponent(dtype.split));
    }
    LadderTables tables = {};
    for (uint32_t rank = 0; rank < 16; ++rank) {
        const auto symbol = static_cast<uint8_t>((5 * rank + 3) % 16);
        tables.symbol_of_rank[rank] = symbol;
        tables.rank_of_symbol[symbol] = static_cast<uint8_t>(rank);
    }
    tables.escape_rank = tables.rank_of_symbol[kEscapeSymbol];
    SplitWords first = {};
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        const LadderKernels& kernel = *kernels().ladder;
        RankPlanes& ranks = workspace().planes[0];
        SplitWords found = {0, Bytes(fields_bytes(rest_bits(dtype.split), m)), {}, Bytes(m)};
        found.n_escapes = kernel.split[split](words.data(), m, tables, prediction.data(),
                                              found.fields.data(), ranks, found.escapes.data());
        found.escapes.resize(found.n_escapes);
        found.escapes.shrink_to_fit();
        found.ranks = first_bits(ranks, m);
        CHECK(first.ranks.empty() || found == first, isa, int{id}, m, near);
        CHECK(!near || found.n_escapes == 0, isa, int{id}, m);
        first = found;
        Bytes merged;
        const auto merge = [&](uint32_t n_escapes, uint32_t slice_words, bool past_caches) {
            merged.assign(words.size(), 0);
            Escapes escapes = {found.escapes.data(), n_escapes};
            bool enough = true;
            for (Slice slice = {0, 0}; enough && slice.first < m; slice.first += slice.n_words) {
                slice.n_words = std::min(m - slice.first, slice_words);
                uint8_t* to = merged.data() + size_t{slice.first} * dtype.container_bytes;
                enough = kernel.merge[split](ranks, m, slice, tables,
                                             prediction.data() + slice.first, found.fields.data(),
                                             escapes, {to, past_caches});
            }
            return enough && escapes.n == 0;
        };
        for (const uint32_t slice_words : {kSliceStep, 3 * kSliceStep, kSubBlockWords}) {
            for (const bool past_caches : {false, true}) {
                CHECK(merge(found.n_escapes, slice_words, past_caches) && merged == words, isa,
                      int{id}, m, near, slice_words, past_caches);
                CHECK(found.n_escapes == 0 || !merge(found.n_escapes - 1, slice_words, past_caches),
                      isa, int{id}, m, slice_words);
            }
        }
    }
}

// What FORMAT 7.6 says of the symbols, word by word.
void predicted_symbols_are_as_the_format_says() {
    LadderTables tables = {};
    for (uint8_t k = 0; k < 16; ++k) {
        tables.symbol_of_rank[k] = tables.rank_of_symbol[k] = k;
    }
    tables.escape_rank = kEscapeSymbol;
    // bf16 words of exponents 0, 1, 120, 107, 106, 121 and 255.
    const uint8_t words[] = {0, 0, 0x80, 0, 0, 0x3C, 0x80, 0x35, 0, 0x35, 0x80, 0x3C, 0x80, 0x7F};
    const uint8_t prediction[] = {3, 3, 120, 120, 120, 120, 2};
    const uint8_t expected[] = {14, 2, 0, 13, 15, 15, 3};
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        RankPlanes& ranks = workspace().planes[0];
        uint8_t fields[7];
        uint8_t escapes[7];
        const uint32_t n_escapes = kernels().ladder->split[static_cast<size_t>(Split::kBf16)](
            words, 7, tables, prediction, fields, ranks, escapes);
        CHECK(n_escapes == 2 && escapes[0] == 106 && escapes[1] == 121, isa, n_escapes);
        for (uint32_t i = 0; i < 7; ++i) {
            uint32_t symbol = 0;
            for (uint32_t b = 0; b < 4; ++b) {
                symbol |= static_cast<uint32_t>(ranks.bit[b][0] >> i & 1) << b;
            }
            CHECK(symbol == expected[i], isa, i, symbol);
        }
    }
}

void predictions_come_back() {
    predicted_symbols_are_as_the_format_says();
    for (uint8_t dtype : {uint8_t{16}, uint8_t{17}, uint8_t{18}}) {
        for (uint32_t m : {1u, 63u, 128u, 255u, 256u, 257u, 1500u, kSubBlockWords}) {
            predicted_words_come_back(dtype, m, Look::kWeights, true);
            predicted_words_come_back(dtype, m, Look::kWide, false);
            predicted_words_come_back(dtype, m, Look::kRandom, false);
        }
    }
}

bool is_allowed(uint32_t levels) {
    for (uint32_t l = 0; l < kMaxLevels; ++l) {
        const uint32_t code = (levels >> (2 * l)) & 3;
        if (code == 0) {
            return false;
        }
        if (code == 3) {
            return l == kMaxLevels - 1 || levels >> (2 * (l + 1)) == 0;
        }
    }
    return false;
}

void headers_are_read_as_the_format_says() {
    uint8_t header[kLadderHeaderBytes] = {100, 0, 0, 0, 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC,
                                          0xFE};
    LadderTables tables;
    for (uint32_t levels = 0; levels < 65536; ++levels) {
        store_u16le(header + 2, static_cast<uint16_t>(levels));
        const bool read = read_ladder_header(header, Split::kBf16, tables) == Status::kOk;
        CHECK(read == is_allowed(levels), levels);
        uint8_t written[kLadderHeaderBytes];
        write_ladder_header(tables, written);
        CHECK(!read || std::memcmp(written, header, sizeof header) == 0, levels);
    }
    store_u16le(header + 2, 0x39);
    CHECK(read_ladder_header(header, Split::kBf16, tables) == Status::kOk);
    header[5] = 0x31;
    CHECK(read_ladder_header(header, Split::kBf16, tables) == Status::kLadderSymbols);
    header[5] = 0x32;
    header[1] = 1;
    CHECK(read_ladder_header(header, Split::kBf16, tables) == Status::kLadderHeader);
}

// Where the counts of the second sub-block are in the frame.
size_t second_head_of(const Bytes& frame, uint8_t dtype, const LadderTables& tables) {
    PayloadReader in(std::span<const uint8_t>(frame).subspan(kFrameHeaderBytes));
    CHECK(in.take(kLadderHeaderBytes) != nullptr);
    SubBlockHead head;
    CHECK(read_sub_block_head(in, kSubBlockWords, dtype_of(dtype), tables, head) == Status::kOk);
    CHECK(in.take(head.fields_bytes + head.levels_bytes + head.escapes_bytes) != nullptr);
    return frame.size() - in.left();
}

// An exponent above those of the split, as emax or escaped, is refused.
void exponents_that_do_not_exist_are_refused(uint8_t dtype) {
    const Split split = dtype_of(dtype).split;
    const Bytes frame = encode(make_words(dtype, 3000, Look::kWide, 8), dtype,
                               {CodecChoice::kLadder, MapChoice::kNever});
    const uint32_t payload_bytes = load_u32le(frame.data() + 12);
    const uint32_t large = max_exponent(split) + 1;
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        Bytes changed = frame;
        store_u16le(changed.data() + kFrameHeaderBytes, static_cast<uint16_t>(large));
        seal(changed);
        CHECK(decode(changed).status == Status::kLadderHeader, isa, int{dtype});
        if (large == 256) {
            continue;  // any byte is an exponent
        }
        changed = frame;  // which ends with the last escape
        store_partial_u64le(changed.data() + kFrameHeaderBytes + payload_bytes -
                                escape_bytes(split),
                            escape_bytes(split), large);
        seal(changed);
        CHECK(decode(changed).status == Status::kLadderExponent, isa, int{dtype});
    }
}

// The counts of levels and escapes each have one right value, in every sub-block.
void wrong_counts_are_refused(uint8_t dtype) {
    const Bytes frame = encode(make_words(dtype, kSubBlockWords + 5000, Look::kWeights, 8), dtype,
                               {CodecChoice::kLadder, MapChoice::kNever});
    LadderTables tables;
    CHECK(read_ladder_header(frame.data() + kFrameHeaderBytes, dtype_of(dtype).split,
                             tables) == Status::kOk);
    const size_t heads[] = {kFrameHeaderBytes + kLadderHeaderBytes,
                            second_head_of(frame, dtype, tables)};
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        for (const size_t head : heads) {
            for (uint32_t l = 0; l < tables.n_levels; ++l) {
                for (int change : {-1, 1, -300, 300}) {
                    Bytes changed = frame;
                    uint8_t* count = changed.data() + head + 2 * l;
                    store_u16le(count, static_cast<uint16_t>(load_u16le(count) + change));
                    seal(changed);
                    CHECK(decode(changed).status != Status::kOk, isa, head, l, change);
                }
            }
        }
    }
}

}  // namespace

int main() {
    every_word_comes_back();
    every_sign_and_exponent_comes_back(18);
    every_sign_and_exponent_comes_back(19);
    extremes_come_back();
    predictions_come_back();
    headers_are_read_as_the_format_says();
    for (uint8_t dtype : {uint8_t{16}, uint8_t{17}, uint8_t{18}, uint8_t{19}, uint8_t{20}}) {
        exponents_that_do_not_exist_are_refused(dtype);
    }
    for (uint8_t dtype : {uint8_t{16}, uint8_t{18}, uint8_t{19}, uint8_t{21}}) {
        wrong_counts_are_refused(dtype);
    }
}
