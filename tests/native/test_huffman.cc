// Huffman: lengths, tables and streams obey their laws, and what the format does not allow is
// refused.
#include <algorithm>

#include "bytes.h"
#include "huffman.h"
#include "laws.h"

using namespace ogds;

namespace {

HuffmanLengths lengths_of(const Bytes& y) {
    uint32_t occurrences[kHuffmanBytes] = {};
    kernels().ans->count_bytes(y.data(), y.size(), occurrences);
    HuffmanLengths lengths;
    fit_lengths(occurrences, lengths);
    return lengths;
}

uint64_t bits_of(const uint32_t (&occurrences)[kHuffmanBytes], const HuffmanLengths& lengths) {
    uint64_t bits = 0;
    for (uint32_t y = 0; y < kHuffmanBytes; ++y) {
        bits += uint64_t{occurrences[y]} * lengths.of[y];
    }
    return bits;
}

struct Coded {
    Bytes streams;
    uint32_t ends[kHuffmanStreams];
    bool complete = false;
};

Coded encode_streams(const Bytes& y, const HuffmanLengths& lengths) {
    static HuffmanEncodeTable table;
    static HuffmanStreams streams;
    build_table(lengths, table);
    Coded coded;
    coded.complete =
        kernels().huffman->encode(y.data(), static_cast<uint32_t>(y.size()), table, streams);
    for (uint32_t s = 0; s < kHuffmanStreams; ++s) {
        const uint8_t* stream = streams.of[s];
        coded.streams.insert(coded.streams.end(), stream, stream + streams.n_bytes[s]);
        coded.ends[s] = static_cast<uint32_t>(coded.streams.size());
    }
    return coded;
}

bool decode_streams(const Coded& coded, const HuffmanLengths& lengths, Bytes& y) {
    static HuffmanDecodeTable table;
    build_table(lengths, table);
    // A payload is never at a null pointer, as the data of an empty vector may be.
    const uint8_t none = 0;
    const uint8_t* streams = coded.streams.empty() ? &none : coded.streams.data();
    return kernels().huffman->decode(streams, coded.ends, table, static_cast<uint32_t>(y.size()),
                                     y.data());
}

// No exchange of a length between two bytes, or of two for one, takes fewer bits; the code is
// complete.
void lengths_are_a_code_and_fit() {
    Random random(1);
    for (uint32_t round = 0; round < 300; ++round) {
        uint32_t occurrences[kHuffmanBytes] = {};
        for (uint32_t i = 0, n = 1 + random.below(kHuffmanBytes); i < n; ++i) {
            occurrences[random.below(kHuffmanBytes)] = 1 + random.below(1u << random.below(20));
        }
        occurrences[round % kHuffmanBytes] = round % 3 == 0 ? 1u << 27 : 1;
        HuffmanLengths lengths;
        fit_lengths(occurrences, lengths);
        uint8_t header[kHuffmanHeaderBytes];
        write_lengths(lengths, header);
        HuffmanLengths back;
        CHECK(read_lengths(header, kHuffmanBytes, back) == Status::kOk, round);
        CHECK(std::equal(back.of, back.of + kHuffmanBytes, lengths.of), round);
        const auto is_set = [](uint32_t n) { return n != 0; };
        const auto n_codes = static_cast<uint32_t>(
            std::count_if(lengths.of, lengths.of + kHuffmanBytes, is_set));
        const auto n_present = static_cast<uint32_t>(
            std::count_if(occurrences, occurrences + kHuffmanBytes, is_set));
        CHECK(n_codes == std::max(n_present, 2u), round, n_codes, n_present);
        for (uint32_t a = 0; a < kHuffmanBytes; ++a) {
            for (uint32_t b = 0; b < kHuffmanBytes; ++b) {
                CHECK(occurrences[a] <= occurrences[b] || occurrences[b] == 0 ||
                          lengths.of[a] <= lengths.of[b],
                      round, a, b);
            }
        }
    }
    // By hand: 1, 1, 2, 4, … take lengths 1, 2, 3, … without a limit.
    uint32_t powers[kHuffmanBytes] = {1};
    for (uint32_t y = 1; y < 12; ++y) {
        powers[y] = 1u << (y - 1);
    }
    HuffmanLengths lengths;
    fit_lengths(powers, lengths);
    CHECK(bits_of(powers, lengths) == 2 * 2048 - 2, bits_of(powers, lengths));
    CHECK(lengths.of[11] == 1 && lengths.of[0] == 11);
}

void streams_come_back() {
    Random random(3);
    for (const uint32_t n_values : {1u, 2u, 3u, 40u, 256u}) {
        for (const uint32_t n : {1u, 2u, 7u, 8u, 9u, 31u, 33u, 40u, 41u, 47u, 100u, 1000u, 32767u,
                                 kSubBlockWords}) {
            const Bytes y = make_bytes(n, n_values, random);
            const HuffmanLengths lengths = lengths_of(y);
            Bytes first;
            for (const std::string& isa : isas()) {
                CHECK(use_kernels(isa.c_str()), isa);
                const Coded coded = encode_streams(y, lengths);
                CHECK(coded.complete, isa, n, n_values);
                CHECK(first.empty() || coded.streams == first, isa, n, n_values);
                first = coded.streams;
                Bytes back(n, 0xA5);
                CHECK(decode_streams(coded, lengths, back) && back == y, isa, n, n_values);
            }
        }
    }
}

void sets_are_found() {
    Random random(8);
    for (uint32_t round = 0; round < 200; ++round) {
        ByteSet set;
        for (uint32_t i = 0, n = random.below(4); i < n; ++i) {
            add_byte(set, random.below(kHuffmanBytes));
        }
        const Bytes y = make_bytes(random.below(100), kHuffmanBytes, random);
        const bool any =
            std::any_of(y.begin(), y.end(), [&](uint8_t b) { return has_byte(set, b); });
        for (const std::string& isa : isas()) {
            CHECK(use_kernels(isa.c_str()), isa);
            const auto n = static_cast<uint32_t>(y.size());
            CHECK(kernels().huffman->has_any(y.data(), n, set) == any, isa, round);
        }
    }
}

// Every byte takes the most bits that a refill must hold.
void rare_bytes_come_back() {
    HuffmanLengths lengths = {};
    for (uint32_t y = 0; y < 10; ++y) {
        lengths.of[y] = static_cast<uint8_t>(y + 1);
    }
    lengths.of[10] = lengths.of[11] = kHuffmanBits;
    Bytes y(kSubBlockWords);
    for (uint32_t i = 0; i < y.size(); ++i) {
        y[i] = static_cast<uint8_t>(10 + i % 3 % 2);
    }
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        const Coded coded = encode_streams(y, lengths);
        CHECK(coded.streams.size() == kHuffmanStreams * kMaxHuffmanStreamBytes);
        Bytes back(y.size());
        CHECK(decode_streams(coded, lengths, back) && back == y, isa);
    }
}

void bytes_without_a_code_are_found() {
    Bytes y(5000, 3);
    const HuffmanLengths lengths = lengths_of(y);
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        for (const uint32_t at : {0u, 8u, 4959u, 4960u, 4999u}) {
            for (const uint32_t n : {1u, 4u, 40u}) {
                Bytes changed = y;
                for (uint32_t k = 0; k < n && at + 8 * k < changed.size(); ++k) {
                    changed[at + 8 * k] = 77;
                }
                CHECK(!encode_streams(changed, lengths).complete, isa, at, n);
            }
        }
    }
}

void any_bytes_are_safe_streams() {
    Random random(5);
    const HuffmanLengths lengths = lengths_of(make_bytes(3000, 200, random));
    for (uint32_t round = 0; round < 3000; ++round) {
        Coded coded;
        coded.streams.resize(random.below(400));
        for (uint8_t& byte : coded.streams) {
            byte = static_cast<uint8_t>(random.next());
        }
        for (uint32_t& end : coded.ends) {
            end = random.below(static_cast<uint32_t>(coded.streams.size()) + 1);
        }
        std::sort(coded.ends, coded.ends + kHuffmanStreams);
        coded.ends[kHuffmanStreams - 1] = static_cast<uint32_t>(coded.streams.size());
        for (const std::string& isa : isas()) {
            CHECK(use_kernels(isa.c_str()), isa);
            Bytes back(1 + random.below(500));
            CHECK(!decode_streams(coded, lengths, back) || encode_streams(back, lengths).ends[7] ==
                                                               coded.ends[7], isa, round);
        }
    }
}

void every_frame_comes_back() {
    for (const uint8_t dtype : all_dtypes()) {
        if (!is_huffman(dtype_of(dtype))) {
            continue;
        }
        for (const Look look : kLooks) {
            for (const uint32_t n_words : {1u, 7u, 300u, 1061u}) {
                const Bytes words = make_words(dtype, n_words, look, n_words);
                for (const MapChoice map : {MapChoice::kNever, MapChoice::kAlways}) {
                    comes_back(words, dtype, {CodecChoice::kHuffman, map});
                    comes_back(words, dtype, {CodecChoice::kMax, map});
                }
            }
            const Bytes words = make_words(dtype, 3000, look, 9);
            const size_t most = encode(words, dtype, {CodecChoice::kMax}).size();
            CHECK(most <= encode(words, dtype, {CodecChoice::kHuffman}).size(), int{dtype});
        }
    }
    const Bytes words = make_words(20, 2 * kSubBlockWords + 300, Look::kWeights, 3);
    comes_back(words, 20, {CodecChoice::kHuffman});
    comes_back(words, 20, {CodecChoice::kMax});
}

// Of many words a sample is counted: bytes that it does not see come back, too.
void unsampled_bytes_come_back() {
    Bytes words = make_words(20, 5 * kSubBlockWords + 700, Look::kWeights, 7);
    for (size_t i = 0; i < words.size(); ++i) {
        words[i] = static_cast<uint8_t>(words[i] % 64);
    }
    for (uint32_t y = 64; y < kHuffmanBytes; ++y) {
        words[kSubBlockWords - 1 - 97 * (y - 64)] = static_cast<uint8_t>(y);
    }
    comes_back(words, 20, {CodecChoice::kHuffman});
    comes_back(words, 20, {CodecChoice::kMax});
    const size_t bytes = encode(words, 20, {CodecChoice::kHuffman}).size();
    CHECK(bytes < words.size());
}

void malformed_frames_are_refused() {
    const EncodeOptions forced = {CodecChoice::kHuffman, MapChoice::kNever};
    const Bytes nibbles = encode(make_words(11, 500, Look::kRandom, 4), 11, forced);
    const size_t heads = kFrameHeaderBytes + kHuffmanHeaderBytes;
    is_refused(nibbles, kFrameHeaderBytes, 1, Status::kHuffmanLengths);
    is_refused(nibbles, kFrameHeaderBytes, 8, Status::kHuffmanLengths);
    is_refused(nibbles, kFrameHeaderBytes + 8, 1, Status::kHuffmanLengths);  // 16 is no uint4
    is_refused(nibbles, heads + 15, 0x80, Status::kPayloadShort);
    Bytes moved = nibbles;
    moved[heads] = static_cast<uint8_t>(moved[heads] + 1);
    moved[heads + 2] = static_cast<uint8_t>(moved[heads + 2] - 1);
    is_refused(moved, heads, 0, Status::kHuffmanStream);
    is_refused_as(Codec::kHuffman, 16, Status::kHuffmanDtype);
}

}  // namespace

int main() {
    lengths_are_a_code_and_fit();
    streams_come_back();
    rare_bytes_come_back();
    sets_are_found();
    unsampled_bytes_come_back();
    bytes_without_a_code_are_found();
    any_bytes_are_safe_streams();
    every_frame_comes_back();
    malformed_frames_are_refused();
}
