// Whether a chunk with a base is coded as a delta.
#pragma once

#include "choice.h"

namespace ogds {

// Codes the normal words of a chunk whose base is known; leaves in `codec` which codec did it. With
// needs_base as a delta or as encode_words does, whichever is smaller. Without as a delta, or
// kNoSpace if that is not worth what it takes to restore the base.
Status encode_delta_words(const ChunkWords& chunk, const Dtype& dtype,
                          const EncodeOptions& options, bool needs_base, PayloadWriter& out,
                          Workspace& workspace, Codec& codec) noexcept;

// Whether the blocks that a map leaves to the base are worth reading it for. By choice they are
// where they are as large a share of what the map leaves to code as a delta has to save.
bool are_worth_base(const MapCounts& counts, const EncodeOptions& options) noexcept;

}  // namespace ogds
