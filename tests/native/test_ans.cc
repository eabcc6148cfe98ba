// Ans: counts, tables and streams obey their laws, and what the format does not allow is refused.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "ans.h"
#include "bytes.h"
#include "laws.h"

using namespace ogds;

namespace {

const AnsKernels& kernel() { return *kernels().ans; }

AnsCounts counts_of(const Bytes& y) {
    uint32_t occurrences[kAnsBytes] = {};
    kernel().count_bytes(y.data(), y.size(), occurrences);
    AnsCounts counts;
    fit_counts(occurrences, counts);
    return counts;
}

Bytes encode_stream(const Bytes& y, const AnsCounts& counts) {
    const auto alone = std::make_unique<AnsEncodeTable>();
    AnsEncodeTable& table = *alone;
    build_table(counts, table);
    Bytes room(kMaxStreamBytes + 8);
    const auto m = static_cast<uint32_t>(y.size());
    const size_t n = kernel().encode_stream(y.data(), m, table, room.data() + room.size());
    if (kernels().huffman->has_any(y.data(), m, table.unknown)) {
        return {};
    }
    return Bytes(room.end() - static_cast<std::ptrdiff_t>(n), room.end());
}

bool decode_stream(const Bytes& stream, const AnsCounts& counts, Bytes& y) {
    static AnsDecodeTable table;
    build_table(counts, table);
    return kernel().decode_stream(stream.data(), stream.size(), table,
                                  static_cast<uint32_t>(y.size()), y.data());
}

void counts_sum_up_and_forget_no_byte() {
    Random random(1);
    for (uint32_t round = 0; round < 400; ++round) {
        uint32_t occurrences[kAnsBytes] = {};
        const uint32_t n_values = 1 + random.below(kAnsBytes);
        for (uint32_t i = 0; i < n_values; ++i) {
            const uint32_t magnitude = random.below(29);
            occurrences[random.below(kAnsBytes)] = 1 + random.below((1u << magnitude) / 256 + 1);
        }
        occurrences[round % kAnsBytes] = round % 3 == 0 ? 1u << 28 : 1;
        AnsCounts counts;
        fit_counts(occurrences, counts);
        uint32_t sum = 0;
        for (uint32_t y = 0; y < kAnsBytes; ++y) {
            CHECK((counts.of[y] != 0) == (occurrences[y] != 0), round, y);
            sum += counts.of[y];
        }
        CHECK(sum == kAnsStates, round, sum);
    }
}

// The states that a state may go on to are those from base on, and together they are all.
void tables_are_what_the_format_says() {
    Random random(2);
    for (const uint32_t n_values : {1u, 2u, 3u, 100u, 256u}) {
        const AnsCounts counts = counts_of(make_bytes(5000, n_values, random));
        AnsDecodeTable table;
        build_table(counts, table);
        uint32_t states[kAnsBytes] = {};
        uint32_t reached[kAnsBytes] = {};
        for (const uint32_t entry : table.of_state) {
            const uint32_t n_bits = entry & 0xFF;
            const uint32_t y = (entry >> 8) & 0xFF;
            CHECK(n_bits <= kAnsStateBits && (entry >> 16) + (1u << n_bits) <= kAnsStates, entry);
            ++states[y];
            reached[y] += 1u << n_bits;
        }
        for (uint32_t y = 0; y < kAnsBytes; ++y) {
            CHECK(states[y] == counts.of[y], y);
            CHECK(reached[y] == (counts.of[y] != 0 ? kAnsStates : 0), y);
        }
    }
}

void streams_come_back() {
    Random random(3);
    for (const uint32_t n_values : {1u, 2u, 3u, 40u, 256u}) {
        for (const uint32_t n : {1u, 2u, 7u, 8u, 9u, 15u, 16u, 17u, 31u, 100u, 1000u, 32767u,
                                 kSubBlockWords}) {
            const Bytes y = make_bytes(n, n_values, random);
            const AnsCounts counts = counts_of(y);
            Bytes first;
            for (const std::string& isa : isas()) {
                CHECK(use_kernels(isa.c_str()), isa);
                const Bytes stream = encode_stream(y, counts);
                CHECK(first.empty() || stream == first, isa, n, n_values);
                first = stream;
                Bytes back(n, 0xA5);
                CHECK(decode_stream(stream, counts, back) && back == y, isa, n, n_values);
            }
        }
    }
}

// Every count 1 but one: rare bytes take all 12 bits, the most that a window must hold.
void rare_bytes_come_back() {
    Bytes y(kSubBlockWords);
    for (uint32_t i = 0; i < y.size(); ++i) {
        y[i] = static_cast<uint8_t>(1 + i % 255);
    }
    AnsCounts counts;
    std::fill_n(counts.of, kAnsBytes, uint16_t{1});
    counts.of[0] = kAnsStates - 255;
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        const Bytes stream = encode_stream(y, counts);
        CHECK(stream.size() == kMaxStreamBytes, stream.size());
        Bytes back(y.size());
        CHECK(decode_stream(stream, counts, back) && back == y, isa);
    }
}

// Words that another thread writes between the passes: the counts are those of others.
void bytes_without_a_count_are_reported() {
    Random random(8);
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        for (const uint32_t n_values : {1u, 2u, 30u}) {
            const AnsCounts counts = counts_of(make_bytes(3000, n_values, random));
            for (const uint32_t n : {1u, 8u, 9u, 1000u, kSubBlockWords}) {
                Bytes y(n);
                for (uint8_t& byte : y) {
                    byte = static_cast<uint8_t>(random.next());
                }
                y[random.below(n)] = 1;  // make_bytes makes multiples of 37 below 30 * 37
                CHECK(counts.of[1] == 0 && encode_stream(y, counts).empty(), isa, n, n_values);
            }
        }
    }
}

// A cut, a flipped bit or a byte too many: refused, or other bytes.
void damaged_streams_are_refused() {
    Random random(4);
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        for (const uint32_t n : {1u, 9u, 60u}) {
            const Bytes y = make_bytes(n, 30, random);
            const AnsCounts counts = counts_of(y);
            const Bytes stream = encode_stream(y, counts);
            Bytes back(n);
            for (size_t cut = 0; cut < stream.size(); ++cut) {
                const auto at = static_cast<std::ptrdiff_t>(cut);
                CHECK(!decode_stream(Bytes(stream.begin(), stream.begin() + at), counts, back),
                      isa, n, cut);
            }
            Bytes more = stream;
            more.push_back(0);
            CHECK(!decode_stream(more, counts, back), isa, n);
            more.insert(more.begin(), uint8_t{0});
            CHECK(!decode_stream(more, counts, back), isa, n);
            for (size_t bit = 0; bit < 8 * stream.size(); ++bit) {
                Bytes changed = stream;
                changed[bit / 8] = static_cast<uint8_t>(changed[bit / 8] ^ 1 << bit % 8);
                CHECK(!decode_stream(changed, counts, back) || back != y, isa, n, bit);
            }
        }
    }
}

void any_bytes_are_safe_streams() {
    Random random(5);
    const AnsCounts counts = counts_of(make_bytes(3000, 200, random));
    for (uint32_t round = 0; round < 3000; ++round) {
        Bytes stream(random.below(120));
        for (uint8_t& byte : stream) {
            byte = static_cast<uint8_t>(random.next());
        }
        for (const std::string& isa : isas()) {
            CHECK(use_kernels(isa.c_str()), isa);
            Bytes back(1 + random.below(150));
            decode_stream(stream, counts, back);
        }
    }
}

struct Cut {
    Bytes y, rests, escapes;
    uint32_t any_rest = 0;
    uint32_t n_escapes = 0;
};

Cut cut_up(const Bytes& words, const Bytes& predicted, Split split) {
    const auto m = static_cast<uint32_t>(predicted.size());
    Cut cut = {Bytes(m), Bytes(size_t{ans_rest_bits(split)} * level_bytes(1, m)), Bytes(m)};
    cut.n_escapes = kernels().ans_words->split[static_cast<uint32_t>(split)](
        words.data(), m, predicted.data(), cut.y.data(), cut.rests.data(), cut.escapes.data(),
        cut.any_rest);
    cut.escapes.resize(cut.n_escapes);
    return cut;
}

bool put_together(const Cut& cut, const Bytes& predicted, Split split, uint32_t n_escapes,
                  Bytes& words) {
    return kernels().ans_words->merge[static_cast<uint32_t>(split)](
        cut.y.data(), cut.rests.data(), static_cast<uint32_t>(predicted.size()), predicted.data(),
        cut.escapes.data(), n_escapes, words.data());
}

// The first of n words is `first`, so that 65536 of them are all that there are.
void words_are_cut_up_alike(Split split, uint32_t first, uint32_t n, bool signs, Random& random) {
    Bytes words(2 * size_t{n});
    Bytes predicted(n);
    const uint32_t center = random.below(max_exponent(split) + 1);
    for (uint32_t i = 0; i < n; ++i) {
        store_u16le(words.data() + 2 * size_t{i},
                    static_cast<uint16_t>((first + i) & (signs ? 0xFFFF : 0x7FFF)));
        predicted[i] =
            static_cast<uint8_t>((center + random.below(3)) & max_exponent(split));
    }
    CHECK(use_kernels("scalar"), n);
    const Cut twin = cut_up(words, predicted, split);
    CHECK(signs || twin.any_rest >> (ans_rest_bits(split) - 1) == 0, n);
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        const Cut cut = cut_up(words, predicted, split);
        CHECK(cut.y == twin.y && cut.rests == twin.rests && cut.escapes == twin.escapes &&
                  cut.any_rest == twin.any_rest,
              isa, n, first);
        Bytes back(words.size(), 0xA5);
        CHECK(put_together(cut, predicted, split, cut.n_escapes, back) && back == words, isa, n);
        Cut more = cut;
        more.escapes.push_back(0);
        CHECK(!put_together(more, predicted, split, cut.n_escapes + 1, back), isa, n);
        CHECK(cut.n_escapes == 0 ||
                  !put_together(cut, predicted, split, cut.n_escapes - 1, back),
              isa, n);
    }
}

void all_words_are_cut_up_alike() {
    Random random(6);
    for (const Split split : {Split::kBf16, Split::kFp16}) {
        for (uint32_t first = 0; first < 65536; first += kSubBlockWords) {
            words_are_cut_up_alike(split, first, kSubBlockWords, true, random);
        }
        for (uint32_t round = 0; round < 200; ++round) {
            words_are_cut_up_alike(split, random.below(65536), 1 + random.below(1000),
                                   round % 2 == 0, random);
        }
    }
}

bool takes_ans(uint8_t dtype) { return is_modelled(dtype_of(dtype).split); }

void every_frame_comes_back() {
    for (const uint8_t dtype : all_dtypes()) {
        for (const Look look : kLooks) {
            for (const uint32_t n_words : {1u, 7u, 300u, 1061u}) {
                const Bytes words = make_words(dtype, n_words, look, n_words);
                for (const MapChoice map : {MapChoice::kNever, MapChoice::kAlways}) {
                    comes_back(words, dtype, {CodecChoice::kMax, map});
                    if (takes_ans(dtype)) {
                        comes_back(words, dtype, {CodecChoice::kAns, map});
                    }
                }
            }
        }
    }
    for (const uint8_t dtype : {uint8_t{16}, uint8_t{17}, uint8_t{18}}) {
        for (const Look look : {Look::kWeights, Look::kWide, Look::kBlocks}) {
            const Bytes words = make_words(dtype, 2 * kSubBlockWords + 300, look, 3);
            comes_back(words, dtype, {CodecChoice::kAns});
            comes_back(words, dtype, {CodecChoice::kMax});
        }
    }
}

void max_is_never_larger() {
    for (const uint8_t dtype : all_dtypes()) {
        for (const Look look : kLooks) {
            const Bytes words = make_words(dtype, 3000, look, 9);
            const size_t most = encode(words, dtype, {CodecChoice::kMax}).size();
            CHECK(most <= encode(words, dtype, {CodecChoice::kAuto}).size(), int{dtype});
            if (takes_ans(dtype)) {
                CHECK(most <= encode(words, dtype, {CodecChoice::kAns}).size(), int{dtype});
            }
        }
    }
}

// Low bits that are 0 in all words are not written, nor signs where there are none.
void zeros_are_left_out() {
    Bytes words = make_words(18, 4000, Look::kWeights, 6);
    const size_t full = encode(words, 18, {CodecChoice::kAns}).size();
    for (uint32_t i = 0; i < 4000; ++i) {
        store_u32le(words.data() + 4 * i, load_u32le(words.data() + 4 * i) & 0x7FFFE000);
    }
    comes_back(words, 18, {CodecChoice::kAns});
    const size_t left = encode(words, 18, {CodecChoice::kAns}).size();
    CHECK(left + 4000 * 14 / 8 <= full + 64, left, full);
}

// Where things are in the frame of a chunk without a map: header, counts, head of the sub-block.
constexpr size_t kHeaderAt = kFrameHeaderBytes;
constexpr size_t kBitmapAt = kHeaderAt + kAnsHeaderBytes;
constexpr size_t kCountsAt = kBitmapAt + kAnsBitmapBytes;

size_t head_at(const Bytes& frame) {
    size_t n_present = 0;
    for (size_t i = 0; i < kAnsBitmapBytes; ++i) {
        n_present += static_cast<size_t>(std::popcount(frame[kBitmapAt + i]));
    }
    return kCountsAt + 2 * n_present;
}

void malformed_headers_are_refused() {
    const EncodeOptions forced = {CodecChoice::kAns, MapChoice::kNever};
    const Bytes halves = encode(make_words(17, 500, Look::kRandom, 4), 17, forced);
    is_refused(halves, kHeaderAt, 4, Status::kAnsHeader);
    is_refused(halves, kHeaderAt + 1, 0x80, Status::kAnsHeader);
    is_refused(halves, kHeaderAt, 1, Status::kAnsHeader);      // a prediction without columns
    is_refused(halves, kHeaderAt + 2, 32, Status::kAnsHeader);  // emax of 5 bits
    is_refused(halves, kHeaderAt + 4, 8, Status::kAnsHeader);   // columns without a prediction
    is_refused(halves, kCountsAt, 1, Status::kAnsCounts);
    const size_t head = head_at(halves);
    is_refused(halves, head, 32, Status::kAnsTrim);
    is_refused(halves, head + 1, 1, Status::kAnsTrim);
    is_refused(halves, head + 2, 1, Status::kAnsEscapes);
    is_refused(halves, head + 3, 0x80, Status::kAnsEscapes);  // more than words
    is_refused(halves, head + 7, 0x80, Status::kPayloadShort);

    for (const uint8_t dtype : {uint8_t{10}, uint8_t{19}}) {
        is_refused_as(Codec::kAns, dtype, Status::kAnsDtype);
    }
}

// An escaped exponent that the dtype cannot have; the escapes are last in the payload.
void escapes_are_exponents() {
    const Bytes words = make_words(17, 500, Look::kRandom, 4);
    Bytes frame = encode(words, 17, {CodecChoice::kAns, MapChoice::kNever});
    const size_t end = kFrameHeaderBytes + load_u32le(frame.data() + 12);
    CHECK(load_u16le(frame.data() + head_at(frame) + 2) > 0);
    is_refused(frame, end - 1, 0x20, Status::kAnsExponent);
}

}  // namespace

int main() {
    counts_sum_up_and_forget_no_byte();
    tables_are_what_the_format_says();
    streams_come_back();
    rare_bytes_come_back();
    bytes_without_a_count_are_reported();
    damaged_streams_are_refused();
    any_bytes_are_safe_streams();
    all_words_are_cut_up_alike();
    every_frame_comes_back();
    max_is_never_larger();
    zeros_are_left_out();
    malformed_headers_are_refused();
    escapes_are_exponents();
}
