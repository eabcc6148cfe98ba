// One frame: FORMAT 6. Everything here works in the caller's memory and never throws.
#pragma once

#include <cstdint>
#include <span>

#include "choice.h"
#include "dtypes.h"
#include "status.h"
#include "workspace.h"

namespace ogds {

inline constexpr size_t kFrameHeaderBytes = 32;
inline constexpr size_t kFrameAlignment = 64;
inline constexpr size_t kIndexRecordBytes = 32;
inline constexpr size_t kMaxFrameBytes = 0x7FFFFFFF;

inline constexpr uint16_t kFlagBlockMap = 1;
inline constexpr uint16_t kFlagDelta = 2;
inline constexpr size_t kBaseCrcBytes = 4;  // in front of the payload of a delta

// The words that a delta follows from; without them words == nullptr.
struct Base {
    const uint8_t* words = nullptr;  // as many containers as the chunk has
    uint32_t payload_crc = 0;        // in the header of the frame they came from
};

struct FrameHeader {
    Codec codec = Codec::kRaw;
    uint8_t dtype = 0;
    uint16_t flags = 0;
    uint32_t n_words = 0;
    uint32_t payload_bytes = 0;
    uint32_t frame_bytes = 0;
    uint32_t chunk = 0;
    uint32_t payload_crc = 0;
};

// What is known of a chunk before its words are seen.
struct ChunkShape {
    uint32_t chunk;
    uint32_t n_words;
    uint8_t dtype;
    uint32_t columns = 0;  // words in a row where the chunk is a matrix, else 0; only to encode
};

// Upper bound of frame_bytes for CodecChoice::kFast, kAuto, kMax and kRaw without a forced block
// map; a multiple of 64. May exceed kMaxFrameBytes: then the chunk is coded only if its frame
// happens to fit.
size_t max_frame_bytes(uint32_t n_words, const Dtype& dtype) noexcept;

// The same for every choice.
size_t max_forced_frame_bytes(uint32_t n_words, const Dtype& dtype) noexcept;

// Codes a chunk; `words` holds n_words containers. The frame is header.frame_bytes long. `out` has
// the room that the functions above name: with less it may be kNoSpace, or another codec than else.
//
// With a base the frame is a delta where that is smaller; the base's words must not change
// meanwhile.
Status encode_frame(std::span<const uint8_t> words, const ChunkShape& shape,
                    const EncodeOptions& options, std::span<uint8_t> out, Workspace& workspace,
                    FrameHeader& header, const Base& base = {}) noexcept;

// Lengthens a finished frame with zeros to frame_bytes, a multiple of 64.
Status lengthen_frame(std::span<uint8_t> frame, size_t frame_bytes, FrameHeader& header) noexcept;

// Reads and checks the first 32 bytes of a frame.
Status read_frame_header(std::span<const uint8_t> frame, FrameHeader& header) noexcept;

// Decodes a frame that is alone in `frame`. `words` holds n_words containers, or is empty: then
// everything is checked and nothing kept. A delta needs its base, whose words may lie in `words`.
Status decode_frame(std::span<const uint8_t> frame, const FrameHeader& header,
                    std::span<uint8_t> words, Workspace& workspace,
                    const Base& base = {}) noexcept;

// Writes the 32 bytes, with their CRC32C.
void write_frame_header(const FrameHeader& header, uint8_t* out) noexcept;

void write_index_record(const FrameHeader& header, uint64_t offset, uint8_t* record) noexcept;

// Whether a record, apart from its offset, says the same as the header.
bool record_agrees(const uint8_t* record, const FrameHeader& header) noexcept;

}  // namespace ogds
