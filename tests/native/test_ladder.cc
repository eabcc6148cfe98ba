// The ladder: famous words, every exponent, every possible header.
#include <algorithm>
#include <cstring>

#include "bytes.h"
#include "check.h"
#include "ladder.h"
#include "payload.h"
#include "samples.h"

using namespace ogds;

namespace {

void comes_back(const Bytes& words, uint8_t dtype) {
    Bytes first;
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        const Bytes frame = encode(words, dtype, {CodecChoice::kLadder, MapChoice::kNever});
        CHECK(first.empty() || frame == first, isa);
        first = frame;
        CHECK(decode(frame).words == words, isa);
    }
}

void every_bf16_word_comes_back() {
    Bytes words(2 * 65536);
    for (uint32_t i = 0; i < 65536; ++i) {
        store_u16le(words.data() + 2 * i, static_cast<uint16_t>(i * 40503));  // a permutation
    }
    comes_back(words, 16);
}

void every_fp32_sign_and_exponent_comes_back() {
    Bytes words;
    Random random(9);
    for (uint32_t top = 0; top < 512; ++top) {
        for (uint32_t mantissa : {0u, 1u, 0x7FFFFFu, 0x400000u, 0x3FFFFFu, random.below(1 << 23)}) {
            words.resize(words.size() + 4);
            store_u32le(words.data() + words.size() - 4, top << 23 | mantissa);
        }
    }
    comes_back(words, 18);
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
        const bool read = read_ladder_header(header, tables) == Status::kOk;
        CHECK(read == is_allowed(levels), levels);
        uint8_t written[kLadderHeaderBytes];
        write_ladder_header(tables, written);
        CHECK(!read || std::memcmp(written, header, sizeof header) == 0, levels);
    }
    store_u16le(header + 2, 0x39);
    CHECK(read_ladder_header(header, tables) == Status::kOk);
    header[5] = 0x31;
    CHECK(read_ladder_header(header, tables) == Status::kLadderSymbols);
    header[5] = 0x32;
    header[1] = 1;
    CHECK(read_ladder_header(header, tables) == Status::kLadderHeader);
}

// Where the counts of the second sub-block are in the frame.
size_t second_head_of(const Bytes& frame, uint8_t dtype, const LadderTables& tables) {
    PayloadReader in(std::span<const uint8_t>(frame).subspan(kFrameHeaderBytes));
    CHECK(in.take(kLadderHeaderBytes) != nullptr);
    SubBlockHead head;
    CHECK(read_sub_block_head(in, kSubBlockWords, dtype_of(dtype), tables, head) == Status::kOk);
    CHECK(in.take(head.planes_bytes + head.levels_bytes + head.n_escapes) != nullptr);
    return frame.size() - in.left();
}

// The counts of levels and escapes each have one right value, in every sub-block.
void wrong_counts_are_refused(uint8_t dtype) {
    const Bytes frame = encode(make_words(dtype, kSubBlockWords + 5000, Look::kWeights, 8), dtype,
                               {CodecChoice::kLadder, MapChoice::kNever});
    LadderTables tables;
    CHECK(read_ladder_header(frame.data() + kFrameHeaderBytes, tables) == Status::kOk);
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
    every_bf16_word_comes_back();
    every_fp32_sign_and_exponent_comes_back();
    extremes_come_back();
    headers_are_read_as_the_format_says();
    wrong_counts_are_refused(16);
    wrong_counts_are_refused(18);
}
