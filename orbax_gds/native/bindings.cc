// orbax_gds._native: validate, release the GIL, one call, map the status.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "isa.h"

namespace nb = nanobind;
using namespace ogds;

namespace {

// A contiguous buffer export, held for as long as this object lives.
class Buffer {
public:
    explicit Buffer(nb::handle object, bool writable = false) {
        const int flags = PyBUF_SIMPLE | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
            throw nb::python_error();
        }
    }
    Buffer(Buffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { PyBuffer_Release(&view_); }

    uint8_t* data() const noexcept { return static_cast<uint8_t*>(view_.buf); }
    size_t size() const noexcept { return static_cast<size_t>(view_.len); }

private:
    Py_buffer view_{};
};

uint32_t crc32c(nb::handle data, uint32_t value) {
    const Buffer buffer(data);
    const nb::gil_scoped_release release;
    return kernels().crc32c(buffer.data(), buffer.size(), value);
}

std::vector<std::string> isas() {
    const Kernels* tables[8];
    const size_t n = available_kernels(tables, 8);
    std::vector<std::string> names;
    for (size_t i = 0; i < n; ++i) {
        names.emplace_back(tables[i]->name);
    }
    return names;
}

void use_isa(const std::string& name) {
    if (use_kernels(name.c_str())) {
        return;
    }
    std::string known;
    for (const std::string& isa : isas()) {
        known += (known.empty() ? "" : ", ") + isa;
    }
    throw nb::value_error(
        ("This machine cannot run the kernels '" + name + "'; it can run: " + known + ".").c_str());
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("crc32c", &crc32c, nb::arg("data"), nb::arg("value") = 0);
    m.def("isa", [] { return std::string(kernels().name); });
    m.def("isas", &isas);
    m.def("use_isa", &use_isa, nb::arg("name"));
    if (const char* forced = std::getenv("ORBAX_GDS_ISA"); forced != nullptr && *forced != '\0') {
        use_isa(forced);
    }
}
