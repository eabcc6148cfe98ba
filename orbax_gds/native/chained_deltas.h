// Deltas of one chunk that follow from each other, decoded together: each sub-block through all of
// them before the next one, so that its words stay in a core's own caches.
#pragma once

#include <cstdint>
#include <span>

#include "delta.h"
#include "frame.h"

namespace ogds {

class ChainedDeltas {
public:
    // Whether a frame can be one of them: all its words are coded as differences.
    static bool takes(const FrameHeader& header) noexcept {
        return header.codec == Codec::kDelta && header.flags == kFlagDelta;
    }

    bool is_full() const noexcept { return n_ == kMostChained; }

    // Adds the next frame, alone in `frame`. Not if it is full.
    void add(std::span<const uint8_t> frame, const FrameHeader& header) noexcept {
        deltas_[n_++] = {frame, header, PayloadReader({}), {}, false};
    }

    // Decodes those that were added, and forgets them. `words` hold the words of `base` and get
    // those of the last, which becomes `base`. Whatever is wrong, the status is that of some of
    // them only.
    Status decode(std::span<uint8_t> words, Workspace& workspace, Base& base) noexcept;

private:
    struct Delta {
        std::span<const uint8_t> frame;
        FrameHeader header;
        PayloadReader in{std::span<const uint8_t>{}};
        DeltaDecoder decoder;
        bool is_unchanged;
    };

    Status start(Delta& delta, HuffmanDecodeTable& table, const Base& base) noexcept;

    Delta deltas_[kMostChained];
    size_t n_ = 0;
};

}  // namespace ogds
