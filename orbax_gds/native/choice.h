// Which codec codes the words of a chunk.
#pragma once

#include "block_map.h"
#include "dtypes.h"
#include "payload.h"
#include "workspace.h"

namespace ogds {

enum class Codec : uint8_t {
    kRaw = 0,
    kLadder = 1,
    kModelled = 2,
    kAns = 3,
    kZstd = 4,
    kHuffman = 5,
    kDelta = 6,
};

enum class CodecChoice : uint8_t {
    kFast,      // ladder of a single level or raw, as a sample says; raw if less than 2 % is saved
    kAuto,      // modelled, ladder, zstd or raw, as a sample says; raw if less than 2 % is saved
    kMax,       // ans, huffman or what kAuto would use, whichever is smallest; of few words all
                // are tried
    kRaw,       // always
    kLadder,    // always
    kModelled,  // always; predicted where the chunk has columns
    kAns,       // always
    kZstd,      // always
    kHuffman,   // always
    kDelta,     // always; a base is needed
};

enum class MapChoice : uint8_t {
    kWhenSmaller,
    kNever,
    kAlways,
};

struct EncodeOptions {
    CodecChoice codec = CodecChoice::kAuto;
    MapChoice block_map = MapChoice::kWhenSmaller;
    int zstd_level = 0;  // 0: not used by choice
};

// Codes the normal words; leaves in `codec` which codec did it.
Status encode_words(const ChunkWords& chunk, const Dtype& dtype, const EncodeOptions& options,
                    PayloadWriter& out, Workspace& workspace, Codec& codec) noexcept;

// What kAuto's codecs are expected to take, rest and all, for `total` words: those of a sample.
struct ExpectedBits {
    uint64_t bits = 0;
    uint32_t total = 0;
};

// Of words with a split. `out` is where they would be coded; nothing is written.
ExpectedBits expect_floats(const ChunkWords& chunk, const Dtype& dtype,
                           PayloadWriter out) noexcept;

}  // namespace ogds
