// The Python type orbax_gds._native.RunWriter, and the clock it measures by.
#pragma once

#include <nanobind/nanobind.h>

namespace ogds {

void add_run_writer(nanobind::module_& module);

}  // namespace ogds
