// The Python type orbax_gds._native.RunWriter.
#pragma once

#include <nanobind/nanobind.h>

namespace ogds {

void add_run_writer(nanobind::module_& module);

}  // namespace ogds
