// Memory that is lent to calls of the core.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "workspace.h"

namespace ogds {

inline constexpr size_t kKeptScratchBytes = size_t{16} << 20;  // of words, by each scratch
inline constexpr size_t kKeptScratches = 64;  // chosen: as many calls at once keep theirs

// Memory of one call, kept for later ones: fresh pages cost more than coding what fills them.
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

// A scratch that no other call has. Threads come and go with every save, what they touched is kept
// for those that come next. Only with the GIL: it guards what is kept.
class Lease {
public:
    Lease() {
        std::vector<std::unique_ptr<Scratch>>& all = kept();
        if (all.empty()) {
            scratch_ = std::make_unique<Scratch>();
        } else {
            scratch_ = std::move(all.back());
            all.pop_back();
        }
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
        scratch_->trim();
        if (kept().size() < kKeptScratches) {
            kept().push_back(std::move(scratch_));
        }
    }

    Scratch* operator->() const noexcept { return scratch_.get(); }

private:
    // Never destroyed: threads may outlive the end of the program's main function.
    static std::vector<std::unique_ptr<Scratch>>& kept() {
        static auto* const all = [] {
            auto* const empty = new std::vector<std::unique_ptr<Scratch>>;
            empty->reserve(kKeptScratches);  // to keep one needs no memory
            return empty;
        }();
        return *all;
    }

    std::unique_ptr<Scratch> scratch_;
};

}  // namespace ogds
