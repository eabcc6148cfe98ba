// Words to test with, and forms of the core's calls that own exact memory: every array lies alone
// on the heap, so that the address sanitizer sees each byte read or written beyond it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "frame.h"
#include "isa.h"

namespace ogds {

using Bytes = std::vector<uint8_t>;

// A small generator with the same numbers everywhere.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
    uint64_t next();
    uint32_t below(uint32_t n) { return static_cast<uint32_t>(next() % n); }

private:
    uint64_t state_;
};

// Ids of all dtypes of FORMAT section 5.
std::vector<uint8_t> all_dtypes();

// What the words of a sample look like.
enum class Look {
    kRandom,   // every bit
    kWeights,  // exponents like those of a trained tensor, few outside the window
    kNarrow,   // three exponents
    kWide,     // many escapes
    kZero,
    kConstant,
    kBlocks,   // blocks of 256 words, normal, zero and constant ones mixed
};
inline constexpr Look kLooks[] = {Look::kRandom, Look::kWeights,  Look::kNarrow, Look::kWide,
                                  Look::kZero,   Look::kConstant, Look::kBlocks};

// n words; bits that do not count are 0.
Bytes make_words(uint8_t dtype, uint32_t n_words, Look look, uint64_t seed);

// Stands in for zstd, which the core only knows as functions: it turns every bit and lets the first
// byte of four go, if that is 0 in all of them.
const ForeignCodec& stand_in_zstd();

// Names of all kernels that this machine can run.
std::vector<std::string> isas();

// One for all calls of a test: what an earlier call left in it must not matter.
Workspace& workspace();

// The base that frames are coded against here, whatever their words: the same for every chunk of a
// dtype and as many words.
const Bytes& base_words(uint8_t dtype, uint32_t n_words);
inline constexpr uint32_t kBaseCrc = 0xB45E;

// Words of which some are the base's, some near and some far; how many is drawn.
Bytes make_changed(uint8_t dtype, uint32_t n_words, uint64_t seed);

// Codes in a buffer of exactly the size that is promised to be enough. `columns`: see ChunkShape.
//
// With a base, or the codec delta, against base_words.
Bytes encode(const Bytes& words, uint8_t dtype, const EncodeOptions& options = {},
             uint32_t chunk = 0, uint32_t columns = 0, bool has_base = false);

struct Decoded {
    Status status;
    Bytes words;
};

// Decodes from and into exact memory. A delta is given base_words, as the base it names, and is
// decoded in its place, too.
Decoded decode(const Bytes& frame);

// Corrects magic, lengths and both CRCs, so that what is behind them is reached.
void seal(Bytes& frame);

}  // namespace ogds
