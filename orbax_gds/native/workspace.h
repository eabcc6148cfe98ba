// The scratch memory of one thread that codes frames. Zero it once; calls may leave anything in it.
#pragma once

#include "block_map.h"
#include "ladder_kernels.h"

namespace ogds {

struct Workspace {
    RankPlanes planes[2];
    alignas(64) uint8_t words[kSubBlockWords * 8];
    alignas(64) uint8_t escapes[kSubBlockWords];
    uint8_t map[map_bytes_of(kMaxChunkWords)];
};

}  // namespace ogds
