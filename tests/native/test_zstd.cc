// Codec 4 as far as the core goes: planes of words and back, and what it does without the
// functions.
#include "check.h"
#include "samples.h"

using namespace ogds;

namespace {

void comes_back(const Bytes& words, uint8_t dtype, const EncodeOptions& options) {
    const Bytes frame = encode(words, dtype, options);
    const Decoded decoded = decode(frame);
    CHECK(decoded.status == Status::kOk, status_text(decoded.status), int{dtype}, words.size());
    CHECK(decoded.words == words, int{dtype}, words.size());
}

void every_word_comes_back() {
    for (uint8_t dtype : all_dtypes()) {
        for (Look look : kLooks) {
            for (uint32_t n_words : {1u, 63u, 257u, 2047u, 5000u}) {
                const Bytes words = make_words(dtype, n_words, look, n_words);
                for (MapChoice map :
                     {MapChoice::kWhenSmaller, MapChoice::kNever, MapChoice::kAlways}) {
                    comes_back(words, dtype, {CodecChoice::kZstd, map, 1});
                    comes_back(words, dtype, {CodecChoice::kAuto, map, 1});
                }
            }
        }
    }
}

// Every fourth byte of each plane is 0: the stand-in makes such words shorter by a quarter.
Bytes quarter_empty(uint8_t dtype, uint32_t n_words) {
    Bytes words = make_words(dtype, n_words, Look::kRandom, 1);
    const size_t word_bytes = dtype_of(dtype).container_bytes;
    for (size_t i = 0; i < words.size(); ++i) {
        if (i / word_bytes % 4 == 0) {
            words[i] = 0;
        }
    }
    return words;
}

void it_is_chosen_where_it_pays() {
    const auto codec_of = [](const Bytes& words, uint8_t dtype, int level) {
        return int{encode(words, dtype, {CodecChoice::kAuto, MapChoice::kNever, level})[4]};
    };
    for (uint8_t dtype : {uint8_t{2}, uint8_t{5}, uint8_t{6}, uint8_t{9}}) {
        for (uint32_t n_words : {2000u, 200'000u}) {
            CHECK(codec_of(quarter_empty(dtype, n_words), dtype, 1) == 4, int{dtype}, n_words);
            CHECK(codec_of(quarter_empty(dtype, n_words), dtype, 0) == 0, int{dtype}, n_words);
            const Bytes noise = make_words(dtype, n_words, Look::kRandom, 2);
            CHECK(codec_of(noise, dtype, 1) == 0, int{dtype}, n_words);
        }
    }
}

void bits_that_do_not_count_are_refused() {
    for (uint8_t dtype : {uint8_t{10}, uint8_t{13}, uint8_t{14}, uint8_t{29}}) {
        const Bytes words = make_words(dtype, 300, Look::kRandom, 3);
        Bytes frame = encode(words, dtype, {CodecChoice::kZstd, MapChoice::kNever, 1});
        frame[40] = static_cast<uint8_t>(frame[40] ^ 0x80);  // the stand-in turns every bit
        seal(frame);
        const Status status = decode(frame).status;
        CHECK(status == Status::kZstdBits, status_text(status), int{dtype});
    }
}

void without_the_functions_the_codec_is_unknown() {
    const Bytes words = quarter_empty(2, 3000);
    const Bytes frame = encode(words, 2, {CodecChoice::kZstd, MapChoice::kNever, 1});
    workspace().zstd = nullptr;
    CHECK(decode(frame).status == Status::kZstdAbsent, status_text(decode(frame).status));
    Bytes damaged = frame;
    damaged[50] ^= 1;
    CHECK(decode(damaged).status == Status::kPayloadCrc, status_text(decode(damaged).status));
    CHECK(encode(words, 2, {CodecChoice::kAuto, MapChoice::kNever, 1})[4] == 0);
    Bytes out(max_forced_frame_bytes(3000, dtype_of(2)));
    FrameHeader header;
    const Status status = encode_frame(words, {0, 3000, 2}, {CodecChoice::kZstd}, out, workspace(),
                                       header);
    CHECK(status == Status::kZstdAbsent, status_text(status));
    workspace().zstd = &stand_in_zstd();
}

}  // namespace

int main() {
    workspace().zstd = &stand_in_zstd();
    every_word_comes_back();
    it_is_chosen_where_it_pays();
    bits_that_do_not_count_are_refused();
    without_the_functions_the_codec_is_unknown();
}
