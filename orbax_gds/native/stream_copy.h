// Copies past the caches.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ogds {

// As memcpy, for bytes that nobody reads soon: where the machine can, they go to memory without
// their old content being fetched into the cache first. Other threads see them after any usual
// synchronisation.
void stream_copy(uint8_t* to, const uint8_t* from, size_t n) noexcept;

}  // namespace ogds
