#include "zstd_calls.h"

#include <nanobind/nanobind.h>

#include <new>
#include <string_view>
#include <utility>

namespace nb = nanobind;

namespace ogds {

struct ZstdCalls::Result {
    nb::object object;
};

namespace {

nb::object function(const char* name) {
    return nb::module_::import_("orbax_gds.codecs.zstd").attr(name);
}

// Bytes that Python may read for one call: whoever keeps the view, as tracebacks do, finds it
// released.
class View {
public:
    explicit View(std::span<const uint8_t> bytes)
        : view_(nb::steal(PyMemoryView_FromMemory(
              const_cast<char*>(reinterpret_cast<const char*>(bytes.data())),
              static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ))) {
        if (!view_.is_valid()) {
            nb::raise_python_error();
        }
    }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    ~View() {
        if (view_.is_valid() && !try_release(view_)) {
            PyErr_WriteUnraisable(view_.ptr());
        }
    }

    const nb::object& object() const noexcept { return view_; }

    void release() {
        const nb::object view = std::move(view_);
        if (!try_release(view)) {
            nb::raise_python_error();
        }
    }

private:
    static bool try_release(const nb::object& view) {
        return nb::steal(PyObject_CallMethod(view.ptr(), "release", nullptr)).is_valid();
    }

    nb::object view_;
};

template <class Argument>
nb::object call(const char* name, std::span<const uint8_t> bytes, Argument argument) {
    View view(bytes);
    nb::object result = function(name)(view.object(), argument);
    view.release();
    return result;
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

void ZstdCalls::rethrow() const {
    if (error_ != nullptr) {
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
    if (calls.error_ != nullptr) {
        return Status::kZstdFailed;
    }
    const nb::gil_scoped_acquire acquire;
    try {
        calls.result_.reset();
        calls.result_.reset(new Result{call("compress", content, level)});
        coded = bytes_of(calls.result_->object);
        return Status::kOk;
    } catch (const std::exception&) {  // what else is thrown ends the thread
        calls.error_ = std::current_exception();
        return Status::kZstdFailed;
    }
}

Status ZstdCalls::decode(void* self, std::span<const uint8_t> coded, size_t n_bytes,
                         std::span<const uint8_t>& content) noexcept {
    ZstdCalls& calls = *static_cast<ZstdCalls*>(self);
    if (calls.error_ != nullptr) {
        return Status::kZstdFailed;
    }
    const nb::gil_scoped_acquire acquire;
    try {
        calls.result_.reset();
        calls.result_.reset(new Result{call("decompress", coded, n_bytes)});
        const nb::object& object = calls.result_->object;
        if (nb::isinstance<nb::str>(object)) {
            return refusal(object);
        }
        content = bytes_of(object);
        return Status::kOk;
    } catch (const std::exception&) {  // what else is thrown ends the thread
        calls.error_ = std::current_exception();
        return Status::kZstdFailed;
    }
}

}  // namespace ogds
