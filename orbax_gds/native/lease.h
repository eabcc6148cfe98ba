// Memory that a thread lends to its calls of the core.
#pragma once

#include <memory>
#include <span>

#include "workspace.h"

namespace ogds {

inline constexpr size_t kKeptScratchBytes = size_t{16} << 20;  // a thread keeps at most this much

// Memory of one thread, kept between calls: fresh pages cost more than coding what fills them.
class Scratch {
public:
    std::span<uint8_t> words(size_t n_bytes) {
        if (n_bytes > size_) {
            words_ = std::make_unique_for_overwrite<uint8_t[]>(n_bytes);
            size_ = n_bytes;
        }
        return {words_.get(), n_bytes};
    }

    Workspace& workspace() {
        if (workspace_ == nullptr) {
            workspace_ = std::make_unique<Workspace>();
        }
        return *workspace_;
    }

    void trim() noexcept {
        if (size_ > kKeptScratchBytes) {
            words_.reset();
            size_ = 0;
        }
    }

private:
    std::unique_ptr<uint8_t[]> words_;
    size_t size_ = 0;
    std::unique_ptr<Workspace> workspace_;
};

// The scratch of the thread, or another while a call of the same thread has it: zstd calls Python,
// where a signal's handler may save.
class Lease {
public:
    Lease() {
        if (!kept().is_lent) {
            kept().is_lent = true;
            scratch_ = &kept().scratch;
        } else {
            own_ = std::make_unique<Scratch>();
            scratch_ = own_.get();
        }
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
        if (own_ == nullptr) {
            scratch_->trim();
            kept().is_lent = false;
        }
    }

    Scratch* operator->() const noexcept { return scratch_; }

private:
    struct Kept {
        Scratch scratch;
        bool is_lent = false;
    };

    static Kept& kept() {
        static thread_local Kept kept;
        return kept;
    }

    Scratch* scratch_;
    std::unique_ptr<Scratch> own_;
};

}  // namespace ogds
