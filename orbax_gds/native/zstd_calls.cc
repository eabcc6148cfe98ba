#include "zstd_calls.h"

#include <nanobind/nanobind.h>

#include <new>
#include <string_view>

namespace nb = nanobind;

namespace ogds {

struct ZstdCalls::Result {
    nb::object object;
};

namespace {

nb::object function(const char* name) {
    return nb::module_::import_("orbax_gds.codecs.zstd").attr(name);
}

nb::object view(std::span<const uint8_t> bytes) {
    char* data = const_cast<char*>(reinterpret_cast<const char*>(bytes.data()));
    nb::object view = nb::steal(PyMemoryView_FromMemory(
        data, static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ));
    if (!view.is_valid()) {
        nb::raise_python_error();
    }
    return view;
}

std::span<const uint8_t> bytes_of(const nb::object& object) {
    const nb::bytes bytes = nb::cast<nb::bytes>(object);
    return {reinterpret_cast<const uint8_t*>(bytes.c_str()), bytes.size()};
}

// What `decompress` returns in place of bytes that it refuses.
Status refusal(const nb::object& object) {
    const std::string_view word = nb::cast<const char*>(object);
    return word == "size" ? Status::kZstdSize
           : word == "demand" ? Status::kZstdDemand
                              : Status::kZstdFrame;
}

}  // namespace

ZstdCalls::ZstdCalls(Workspace& workspace) noexcept
    : workspace_(workspace), functions_{this, &room, &encode, &decode} {
    workspace_.zstd = &functions_;
}

ZstdCalls::~ZstdCalls() { workspace_.zstd = nullptr; }

void ZstdCalls::rethrow(Status status) const {
    if (status == Status::kZstdFailed && error_ != nullptr) {
        std::rethrow_exception(error_);
    }
}

uint8_t* ZstdCalls::room(void* self, size_t n_bytes) noexcept {
    ZstdCalls& calls = *static_cast<ZstdCalls*>(self);
    if (n_bytes > calls.room_bytes_) {
        calls.room_.reset(new (std::nothrow) uint8_t[n_bytes]);
        calls.room_bytes_ = calls.room_ == nullptr ? 0 : n_bytes;
        if (calls.room_ == nullptr) {
            calls.error_ = std::make_exception_ptr(std::bad_alloc());
        }
    }
    return calls.room_.get();
}

Status ZstdCalls::encode(void* self, std::span<const uint8_t> content, int level,
                         std::span<const uint8_t>& coded) noexcept {
    ZstdCalls& calls = *static_cast<ZstdCalls*>(self);
    const nb::gil_scoped_acquire acquire;
    try {
        calls.result_.reset();
        calls.result_.reset(new Result{function("compress")(view(content), level)});
        coded = bytes_of(calls.result_->object);
        return Status::kOk;
    } catch (...) {
        calls.error_ = std::current_exception();
        return Status::kZstdFailed;
    }
}

Status ZstdCalls::decode(void* self, std::span<const uint8_t> coded, size_t n_bytes,
                         std::span<const uint8_t>& content) noexcept {
    ZstdCalls& calls = *static_cast<ZstdCalls*>(self);
    const nb::gil_scoped_acquire acquire;
    try {
        calls.result_.reset();
        calls.result_.reset(new Result{function("decompress")(view(coded), n_bytes)});
        const nb::object& object = calls.result_->object;
        if (nb::isinstance<nb::str>(object)) {
            return refusal(object);
        }
        content = bytes_of(object);
        return Status::kOk;
    } catch (...) {
        calls.error_ = std::current_exception();
        return Status::kZstdFailed;
    }
}

}  // namespace ogds
