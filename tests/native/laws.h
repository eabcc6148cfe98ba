// What is tested of every codec: words come back from each kernel's frame, and a frame with a
// change in one place is refused for the right reason.
#pragma once

#include "check.h"
#include "samples.h"

namespace ogds {

// Bytes of which at most `n_values` occur, the first of them most often: all multiples of 37.
inline Bytes make_bytes(uint32_t n, uint32_t n_values, Random& random) {
    Bytes y(n);
    for (uint8_t& byte : y) {
        byte = static_cast<uint8_t>(random.below(1 + random.below(n_values)) * 37);
    }
    return y;
}

// The same frame from every kernel, decoded by every kernel.
inline Bytes comes_back(const Bytes& words, uint8_t dtype, const EncodeOptions& options,
                        uint32_t columns = 0) {
    Bytes first;
    for (const std::string& isa : isas()) {
        CHECK(use_kernels(isa.c_str()), isa);
        const Bytes frame = encode(words, dtype, options, 0, columns);
        CHECK(first.empty() || frame == first, isa, int{dtype}, words.size(), columns);
        first = frame;
        const Decoded decoded = decode(frame);
        CHECK(decoded.status == Status::kOk, status_text(decoded.status), isa, int{dtype});
        CHECK(decoded.words == words, isa, int{dtype}, words.size(), columns);
    }
    return first;
}

// `flipped`: the bits to change of the byte at `at`.
inline void is_refused(Bytes frame, size_t at, uint8_t flipped, Status status) {
    frame[at] = static_cast<uint8_t>(frame[at] ^ flipped);
    seal(frame);
    const Status found = decode(frame).status;
    CHECK(found == status, at, status_text(found), status_text(status));
}

// A frame of raw words that says another codec.
inline void is_refused_as(Codec codec, uint8_t dtype, Status status) {
    Bytes frame = encode(make_words(dtype, 50, Look::kRandom, 4), dtype, {CodecChoice::kRaw});
    is_refused(frame, 4, static_cast<uint8_t>(codec), status);
}

}  // namespace ogds
