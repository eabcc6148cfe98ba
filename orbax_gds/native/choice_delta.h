// Whether a chunk with a base is coded as a delta.
#pragma once

#include "choice.h"

namespace ogds {

// Codes the normal words of a chunk whose base is known, as a delta or as encode_words does,
// whichever is smaller; leaves in `codec` which codec did it.
Status encode_delta_words(const ChunkWords& chunk, const Dtype& dtype,
                          const EncodeOptions& options, PayloadWriter& out, Workspace& workspace,
                          Codec& codec) noexcept;

}  // namespace ogds
