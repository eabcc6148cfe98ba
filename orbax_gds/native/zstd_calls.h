// What the core calls for codec 4: orbax_gds.codecs.zstd, with the GIL acquired around the call.
#pragma once

#include <exception>
#include <memory>

#include "foreign.h"
#include "workspace.h"

namespace ogds {

// Lends a workspace the calls for as long as it lives. It is made and destroyed with the GIL held,
// and used without, by threads that are joined before the interpreter ends: to acquire the GIL
// later would end the process. After an exception every further call fails.
class ZstdCalls {
public:
    explicit ZstdCalls(Workspace& workspace) noexcept;
    ZstdCalls(const ZstdCalls&) = delete;
    ZstdCalls& operator=(const ZstdCalls&) = delete;
    ~ZstdCalls();

    // Throws what Python raised, whatever the core made of it.
    void rethrow() const;

private:
    static uint8_t* room(void* self, size_t n_bytes) noexcept;
    static Status encode(void* self, std::span<const uint8_t> content, int level,
                         std::span<const uint8_t>& coded) noexcept;
    static Status decode(void* self, std::span<const uint8_t> coded, size_t n_bytes,
                         std::span<const uint8_t>& content) noexcept;

    struct Result;  // bytes that the core looks at until the next call

    Workspace& workspace_;
    ForeignCodec functions_;
    std::unique_ptr<uint8_t[]> room_;
    size_t room_bytes_ = 0;
    std::unique_ptr<Result> result_;
    std::exception_ptr error_;
};

}  // namespace ogds
