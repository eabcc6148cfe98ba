// Modelled: what is left out comes back, what is not possible is refused, and the cuts are cheap.
#include <algorithm>
#include <cstring>
#include <memory>

#include "bytes.h"
#include "frame_info.h"
#include "laws.h"
#include "modelled.h"
#include "modelled_cuts.h"
#include "modelled_plan.h"

using namespace ogds;

namespace {

constexpr EncodeOptions kAlways = {CodecChoice::kModelled, MapChoice::kNever};
constexpr uint8_t kBf16 = 16;
constexpr uint8_t kFp16 = 17;
constexpr uint8_t kFp32 = 18;

FrameInfo info_of(const Bytes& frame) {
    FrameHeader header;
    FrameInfo info;
    CHECK(read_frame_header(frame, header) == Status::kOk);
    CHECK(read_frame_info(frame, header, workspace(), info) == Status::kOk);
    return info;
}

Bytes comes_back(const Bytes& words, uint8_t dtype, uint32_t columns,
                 const EncodeOptions& options = kAlways) {
    return ogds::comes_back(words, dtype, options, columns);
}

uint32_t word_at(const Bytes& words, size_t i, uint32_t word_bytes) {
    return word_bytes == 2 ? load_u16le(words.data() + 2 * i) : load_u32le(words.data() + 4 * i);
}

void set_word(Bytes& words, size_t i, uint32_t word_bytes, uint32_t word) {
    std::memcpy(words.data() + word_bytes * i, &word, word_bytes);
}

// Exponents that are the sum of a row's and a column's share, now and then 0; no signs.
Bytes moments(uint8_t dtype, uint32_t rows, uint32_t columns, uint64_t seed) {
    const uint32_t word_bytes = dtype_of(dtype).container_bytes;
    const uint32_t shift = split_bits(dtype_of(dtype).split).mantissa;
    const uint32_t spread = dtype == kFp16 ? 6 : 40;
    Random random(seed);
    std::vector<uint32_t> of_column(columns);
    for (uint32_t& offset : of_column) {
        offset = random.below(spread);
    }
    Bytes words(size_t{rows} * columns * word_bytes);
    for (uint32_t i = 0; i < rows; ++i) {
        const uint32_t of_row = 4 + random.below(spread);
        for (uint32_t j = 0; j < columns; ++j) {
            uint32_t e = of_row + of_column[j] + random.below(3);
            e = random.below(100) == 0 ? 0 : e;
            const uint32_t mantissa = random.below(1u << shift);
            set_word(words, size_t{i} * columns + j, word_bytes, e << shift | mantissa);
        }
    }
    return words;
}

void every_16_bit_word_comes_back() {
    Bytes words(2 * 65536);
    for (uint32_t i = 0; i < 65536; ++i) {
        store_u16le(words.data() + 2 * i, static_cast<uint16_t>(i * 40503));  // a permutation
    }
    for (uint32_t columns : {0u, 1u, 255u, 256u, 65536u}) {
        comes_back(words, kBf16, columns);
        comes_back(words, kFp16, columns);
    }
}

void every_look_comes_back() {
    for (uint8_t dtype : {kBf16, kFp16, kFp32}) {
        for (Look look : kLooks) {
            for (uint32_t n_words : {1u, 7u, 300u, kSubBlockWords + 77}) {
                const Bytes words = make_words(dtype, n_words, look, 3);
                for (MapChoice map : {MapChoice::kNever, MapChoice::kAlways}) {
                    comes_back(words, dtype, n_words / 3, {CodecChoice::kModelled, map});
                }
            }
        }
    }
}

void moments_are_predicted_by_choice() {
    for (uint8_t dtype : {kBf16, kFp16, kFp32}) {
        const Bytes words = moments(dtype, 300, 400, 5);
        const Bytes frame = comes_back(words, dtype, 400, {});
        const FrameInfo info = info_of(frame);
        CHECK(info.columns == 400 && info.tables.sign_slot, int{dtype});
        const Bytes ladder = encode(words, dtype, {CodecChoice::kLadder, MapChoice::kNever});
        CHECK(frame.size() < ladder.size() * 9 / 10, frame.size(), ladder.size());
        const FrameInfo flat = info_of(encode(words, dtype, {}, 0, 0));
        CHECK(flat.columns == 0);
    }
}

void a_sign_anywhere_keeps_the_signs() {
    const Bytes positive = moments(kFp32, 100, 1000, 6);
    CHECK(info_of(comes_back(positive, kFp32, 1000)).tables.sign_slot);
    for (size_t at : {size_t{0}, size_t{40000}, size_t{99999}}) {
        Bytes words = positive;
        set_word(words, at, 4, word_at(words, at, 4) | 0x80000000u);
        CHECK(!info_of(comes_back(words, kFp32, 1000)).tables.sign_slot, at);
    }
}

// The words of `n_plain` from `first` on need all their bits, the others not their low z.
Bytes trimmed_words(uint8_t dtype, uint32_t n, uint32_t z, uint32_t first, uint32_t n_plain) {
    const uint32_t word_bytes = dtype_of(dtype).container_bytes;
    Bytes words = make_words(dtype, n, Look::kWeights, 9);
    for (uint32_t i = 0; i < n; ++i) {
        const bool is_plain = i - first < n_plain;
        const uint32_t word = word_at(words, i, word_bytes);
        set_word(words, i, word_bytes, is_plain ? word | 1 : word >> z << z);
    }
    return words;
}

void low_bits_are_left_out() {
    constexpr uint32_t kWords = 3 * kSubBlockWords / 2;
    for (uint8_t dtype : {kBf16, kFp16, kFp32}) {
        const uint32_t most = max_trimmed_bits(dtype_of(dtype).split);
        for (uint32_t z = 0; z <= most; ++z) {
            const Bytes words = trimmed_words(dtype, kWords, z, 20000, 100);
            const FrameInfo info = info_of(comes_back(words, dtype, 0));
            const uint64_t kept = uint64_t{kWords - kSubBlockWords / 16} * z;
            CHECK(z < 2 || info.trimmed_bits >= kept, int{dtype}, z, info.trimmed_bits);
        }
    }
}

// Codes by itself into so many bytes, which lie alone on the heap; their number, or 0 if they were
// not enough.
size_t coded_bytes(const Bytes& words, uint8_t dtype, size_t room) {
    const auto n_words = static_cast<uint32_t>(words.size() / dtype_of(dtype).container_bytes);
    const ChunkWords chunk = {words.data(), nullptr, n_words, n_words, 0};
    ExponentCounts counts;
    ModelledPlan plan;
    sample_exponents(words.data(), nullptr, n_words, dtype_of(dtype), counts);
    plan_modelled(chunk, dtype_of(dtype), counts, true, nullptr, plan);
    const auto exact = std::make_unique<uint8_t[]>(room);
    PayloadWriter out({exact.get(), room});
    const Status status =
        encode_modelled(chunk, dtype_of(dtype), plan.tables, out, workspace());
    CHECK(status == Status::kOk || status == Status::kNoSpace, status_text(status));
    return status == Status::kOk ? out.size() : 0;
}

// The bitmaps of few words take whole bytes: leaving bits out must not lengthen what is written.
void short_sub_blocks_are_never_longer_for_trimming() {
    for (uint8_t dtype : {kFp16, kFp32}) {
        for (uint32_t n = 1; n <= 64; ++n) {
            const size_t full = coded_bytes(trimmed_words(dtype, n, 0, 0, n), dtype, 1000);
            CHECK(full != 0, n);
            for (uint32_t z = 0; z <= max_trimmed_bits(dtype_of(dtype).split); ++z) {
                const Bytes words = trimmed_words(dtype, n, z, 0, 0);
                const size_t n_bytes = coded_bytes(words, dtype, full);
                CHECK(n_bytes != 0 && n_bytes <= full, int{dtype}, n, z, n_bytes, full);
                for (size_t room = n % 7; room < full; room += 7) {
                    coded_bytes(words, dtype, room);
                }
                comes_back(words, dtype, 0);
            }
        }
    }
}

void cuts_follow_the_words() {
    Cut cuts[kMaxCuts];
    const Dtype& dtype = dtype_of(kFp32);
    const Bytes plain = trimmed_words(kFp32, kSubBlockWords, 13, 0, kSubBlockWords);
    CHECK(cut_sub_blocks(plain.data(), kSubBlockWords, dtype, 20, cuts) == 1);
    CHECK(cuts[0].n_words == kSubBlockWords && cuts[0].size == 0 && cuts[0].trimmed_bits == 0);
    const Bytes mixed = trimmed_words(kFp32, kSubBlockWords - 9, 13, 0, 10);
    const uint32_t n = cut_sub_blocks(mixed.data(), kSubBlockWords - 9, dtype, 20, cuts);
    CHECK(n == 5, n);  // 2048, 2048, 4096, 8192 and the rest of 16384 words
    uint32_t n_words = 0;
    for (uint32_t i = 0; i < n; ++i) {
        CHECK(cuts[i].trimmed_bits == (i == 0 ? 0 : 13), i);
        n_words += cuts[i].n_words;
    }
    CHECK(n_words == kSubBlockWords - 9, n_words);
}

Status status_with(Bytes frame, size_t at, std::vector<uint8_t> bytes) {
    std::copy(bytes.begin(), bytes.end(), frame.begin() + static_cast<std::ptrdiff_t>(at));
    seal(frame);
    return decode(frame).status;
}

void headers_and_heads_that_cannot_be_are_refused() {
    const Bytes frame = encode(moments(kFp16, 20, 30, 7), kFp16, kAlways, 0, 30);
    const size_t header = kFrameHeaderBytes;
    const size_t head = header + kModelledHeaderBytes + 20 + 30;
    CHECK(status_with(frame, header, {frame[header]}) == Status::kOk);
    CHECK(status_with(frame, header, {7}) == Status::kModelledHeader);
    CHECK(status_with(frame, header + 1, {1}) == Status::kModelledHeader);
    CHECK(status_with(frame, header, {2}) == Status::kModelledHeader);
    CHECK(status_with(frame, header + 2, {32}) == Status::kLadderHeader);
    CHECK(status_with(frame, header + 14, {1}) == Status::kModelledHeader);
    CHECK(status_with(frame, header + 16, {0, 0, 0, 0}) == Status::kModelledHeader);
    CHECK(status_with(frame, header + 16, {0x59, 2, 0, 0}) == Status::kModelledHeader);
    CHECK(status_with(frame, header + 16, {0, 0, 0, 1}) == Status::kModelledHeader);
    CHECK(status_with(frame, head, {4}) == Status::kModelledSubBlock);
    CHECK(status_with(frame, head, {0, 8}) == Status::kModelledSubBlock);
    CHECK(status_with(frame, head, {0, 7}) != Status::kOk);
    Bytes other = frame;
    other[5] = 4;  // uint16
    seal(other);
    CHECK(decode(other).status == Status::kModelledDtype);
}

// Every byte set to a few other values: right words, or an error.
void damage_is_found_or_harmless() {
    const Bytes frame = encode(moments(kBf16, 9, 40, 8), kBf16, kAlways, 0, 40);
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        for (size_t at = kFrameHeaderBytes; at < frame.size(); ++at) {
            for (const uint8_t change : {uint8_t{1}, uint8_t{0x80}, uint8_t{0xFF}}) {
                Bytes changed = frame;
                changed[at] = static_cast<uint8_t>(changed[at] ^ change);
                seal(changed);
                decode(changed);
            }
        }
    }
}

}  // namespace

int main() {
    every_16_bit_word_comes_back();
    every_look_comes_back();
    moments_are_predicted_by_choice();
    a_sign_anywhere_keeps_the_signs();
    low_bits_are_left_out();
    short_sub_blocks_are_never_longer_for_trimming();
    cuts_follow_the_words();
    headers_and_heads_that_cannot_be_are_refused();
    damage_is_found_or_harmless();
}
