// Frames: what was coded comes back, every kernel writes the same, and damage is refused.
#include <algorithm>

#include "bytes.h"
#include "laws.h"

using namespace ogds;

namespace {

const uint32_t kFewLengths[] = {1, 7, 64, 257, 1061};
const uint32_t kManyLengths[] = {2, 3, 8, 63, 65, 127, 128, 255, 256, 300, 511, 513};
const uint32_t kLongLengths[] = {kSubBlockWords - 1, kSubBlockWords, kSubBlockWords + 1,
                                 2 * kSubBlockWords + 300};

void every_choice_comes_back(uint8_t dtype, uint32_t n_words, Look look) {
    const Bytes words = make_words(dtype, n_words, look, n_words);
    for (MapChoice map : {MapChoice::kWhenSmaller, MapChoice::kNever, MapChoice::kAlways}) {
        for (CodecChoice codec : {CodecChoice::kAuto, CodecChoice::kRaw, CodecChoice::kLadder}) {
            if (codec != CodecChoice::kLadder || dtype_of(dtype).split != Split::kNone) {
                comes_back(words, dtype, {codec, map});
            }
        }
    }
}

void every_frame_comes_back() {
    for (Look look : kLooks) {
        for (uint8_t dtype : all_dtypes()) {
            for (uint32_t n_words : kFewLengths) {
                every_choice_comes_back(dtype, n_words, look);
            }
        }
        for (uint8_t dtype : {uint8_t{10}, uint8_t{16}, uint8_t{18}, uint8_t{19}}) {
            for (uint32_t n_words : kManyLengths) {
                every_choice_comes_back(dtype, n_words, look);
            }
        }
    }
    for (Look look : {Look::kWeights, Look::kWide, Look::kBlocks}) {
        for (uint8_t dtype : {uint8_t{10}, uint8_t{16}, uint8_t{18}}) {
            for (uint32_t n_words : kLongLengths) {
                every_choice_comes_back(dtype, n_words, look);
            }
        }
    }
}

void fast_frames_have_one_level() {
    for (uint8_t dtype : all_dtypes()) {
        for (Look look : {Look::kWeights, Look::kBlocks, Look::kRandom}) {
            const Bytes words = make_words(dtype, 3001, look, 5);
            comes_back(words, dtype, {CodecChoice::kFast, MapChoice::kWhenSmaller});
            const Bytes frame = encode(words, dtype, {CodecChoice::kFast, MapChoice::kNever});
            if (frame[4] == static_cast<uint8_t>(Codec::kLadder)) {
                CHECK(load_u16le(frame.data() + kFrameHeaderBytes + 2) == 3, int{dtype});
            }
            const bool small = look == Look::kWeights && (dtype == 16 || dtype == 18);
            CHECK(!small || frame[4] == static_cast<uint8_t>(Codec::kLadder), int{dtype});
        }
    }
}

void bits_that_do_not_count_change_nothing() {
    for (uint8_t dtype : all_dtypes()) {
        const uint8_t bits = dtype_of(dtype).bits;
        if (bits >= 8) {
            continue;
        }
        const Bytes words = make_words(dtype, 700, Look::kBlocks, 3);
        Bytes dirty = words;
        Random random(4);
        for (uint8_t& byte : dirty) {
            byte = static_cast<uint8_t>(byte | random.next() << bits);
        }
        CHECK(encode(dirty, dtype) == encode(words, dtype), int{dtype});
    }
}

// Any flipped bit and any cut is refused, whatever the frame holds.
void damage_is_refused(const Bytes& frame) {
    for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
        Bytes damaged = frame;
        damaged[bit / 8] = static_cast<uint8_t>(damaged[bit / 8] ^ 1 << bit % 8);
        CHECK(decode(damaged).status != Status::kOk, bit);
    }
    for (size_t n = 0; n < frame.size(); ++n) {
        const Bytes cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(n));
        CHECK(decode(cut).status != Status::kOk, n);
    }
}

// The payload may end nowhere but where it does: what follows is not read, what lacks is missed.
void payload_length_is_exact(const Bytes& frame) {
    const uint32_t payload_bytes = load_u32le(frame.data() + 12);
    for (uint32_t n = 0; n < payload_bytes + 32; ++n) {
        Bytes changed = frame;
        changed.resize(std::max<size_t>(frame.size(), 32 + n));
        store_u32le(changed.data() + 12, n);
        seal(changed);
        CHECK((decode(changed).status == Status::kOk) == (n == payload_bytes), n, payload_bytes);
    }
}

// uint4: block 0 is zero, block 1 constant, and block 2 has 7 words (28 bits).
void reserved_bits_are_refused() {
    Bytes words(519, 0);
    std::fill(words.begin() + 256, words.begin() + 512, uint8_t{7});
    words[518] = 1;
    const Bytes frame = encode(words, 11, {CodecChoice::kRaw, MapChoice::kAlways});
    is_refused(frame, 4, 8, Status::kUnknownCodec);
    is_refused(frame, 5, 0xF0, Status::kUnknownDtype);
    is_refused(frame, 6, 4, Status::kUnknownFlag);
    is_refused(frame, 11, 0xF0, Status::kWordCount);
    is_refused(frame, 32, 0x30, Status::kMapReservedCode);
    is_refused(frame, 32, 0x40, Status::kMapUnusedBits);
    is_refused(frame, 33, 0x10, Status::kMapConstantBits);
    is_refused(frame, 37, 0x10, Status::kRawUnusedBits);
    is_refused(frame, 38, 0x01, Status::kPaddingNotZero);
    is_refused(frame, 63, 0x80, Status::kPaddingNotZero);
}

// Output that lies over the frame changes the frame while it is read, as another thread may: any
// answer, but no access outside and an end. The words of block 0, read as a map, say that every
// block is constant.
void frames_that_change_are_safe() {
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        for (uint8_t dtype : {uint8_t{2}, uint8_t{16}, uint8_t{18}}) {
            const uint32_t block_bytes = kBlockWords * dtype_of(dtype).container_bytes;
            Bytes words(20 * block_bytes);
            std::fill_n(words.begin(), block_bytes, uint8_t{0xAA});
            const Bytes last = make_words(dtype, kBlockWords, Look::kWeights, 6);
            std::copy(last.begin(), last.end(), words.end() - block_bytes);
            const bool ladder = dtype_of(dtype).split != Split::kNone;
            const CodecChoice codec = ladder ? CodecChoice::kLadder : CodecChoice::kRaw;
            Bytes both = encode(words, dtype, {codec, MapChoice::kAlways});
            FrameHeader header;
            CHECK(read_frame_header(both, header) == Status::kOk);
            CHECK(both.size() < words.size() - block_bytes, both.size());
            both.resize(words.size());
            const std::span<uint8_t> all(both);
            decode_frame(all.first(header.frame_bytes), header, all, workspace());
        }
    }
}

// Words at a place that cannot be streamed to.
void words_come_back_to_any_address() {
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        for (uint8_t dtype : {uint8_t{16}, uint8_t{18}, uint8_t{20}}) {
            const Bytes words = make_words(dtype, 40000, Look::kWeights, 5);
            const Bytes frame = encode(words, dtype, {CodecChoice::kLadder, MapChoice::kNever});
            FrameHeader header;
            CHECK(read_frame_header(frame, header) == Status::kOk);
            for (size_t offset : {1u, 8u, 16u}) {
                Bytes to(offset + words.size() + 1, 0xA5);
                const std::span<uint8_t> place = std::span(to).subspan(offset, words.size());
                CHECK(decode_frame(frame, header, place, workspace()) == Status::kOk, isa);
                CHECK(std::equal(words.begin(), words.end(), place.begin()), isa, offset);
                CHECK(to[offset - 1] == 0xA5 && to.back() == 0xA5, isa, offset);
            }
        }
    }
}

void auto_never_grows_and_often_shrinks() {
    for (uint8_t dtype : {uint8_t{16}, uint8_t{18}}) {
        const size_t raw = size_t{40000} * dtype_of(dtype).container_bytes;
        CHECK(encode(make_words(dtype, 40000, Look::kRandom, 1), dtype).size() <= raw + 64);
        CHECK(encode(make_words(dtype, 40000, Look::kZero, 1), dtype).size() <= 128);
        const size_t weights = encode(make_words(dtype, 40000, Look::kWeights, 1), dtype).size();
        CHECK(weights < (dtype == 16 ? raw * 10 / 15 : raw * 10 / 12), weights, raw);
    }
}

}  // namespace

int main() {
    every_frame_comes_back();
    fast_frames_have_one_level();
    bits_that_do_not_count_change_nothing();
    auto_never_grows_and_often_shrinks();
    reserved_bits_are_refused();
    frames_that_change_are_safe();
    words_come_back_to_any_address();
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        for (uint8_t dtype : {uint8_t{10}, uint8_t{16}, uint8_t{18}}) {
            for (Look look : {Look::kWeights, Look::kBlocks}) {
                const Bytes frame = encode(make_words(dtype, 600, look, 5), dtype);
                damage_is_refused(frame);
                payload_length_is_exact(frame);
            }
        }
    }
}
