// A coding that lives outside the core: functions of whoever calls it, and their context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "status.h"

namespace ogds {

// Compresses bytes and back. Memory that a function returns belongs to `context` and holds until
// the next call; so does that of `room`, apart from the others. Every function may be called by one
// thread at a time for one context.
struct ForeignCodec {
    void* context = nullptr;

    // Memory for n bytes of content, or nullptr.
    uint8_t* (*room)(void* context, size_t n_bytes) noexcept = nullptr;

    Status (*encode)(void* context, std::span<const uint8_t> content, int level,
                     std::span<const uint8_t>& coded) noexcept = nullptr;

    // Fails unless the content is exactly n_bytes long.
    Status (*decode)(void* context, std::span<const uint8_t> coded, size_t n_bytes,
                     std::span<const uint8_t>& content) noexcept = nullptr;
};

}  // namespace ogds
