// The frames that a chunk's base is decoded from, oldest first: its chain. FORMAT 3.5 and 7.11.
#pragma once

#include <cstdint>
#include <span>

#include "frame.h"

namespace ogds {

// Frames of the bases of a run's chunks, all of one step: one link of their chains. A record of
// zeros is that of a chunk without a frame in it.
struct BaseLink {
    std::span<const uint8_t> frames;
    const uint8_t* records;
    uint64_t start = 0;  // what offsets of records count from, at the front of `frames`
};

// Whether a record is that of a chunk without a frame.
bool record_is_absent(const uint8_t* record) noexcept;

// Finds the frame of a record and checks it against record and layout. Its offset, at least
// `start`, is that of `frames` and more.
Status find_frame(std::span<const uint8_t> frames, uint64_t start, const uint8_t* record,
                  const ChunkShape& shape, std::span<const uint8_t>& frame,
                  FrameHeader& header) noexcept;

// Decodes the frame of a record into `words`. `base` is what the links before left there, and
// becomes these words, which stay in the caches.
Status decode_link(std::span<const uint8_t> frames, uint64_t start, const uint8_t* record,
                   const ChunkShape& shape, std::span<uint8_t> words, Workspace& workspace,
                   Base& base) noexcept;

}  // namespace ogds
