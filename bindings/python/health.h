// Health of kernels for Python.
#pragma once

#include <Python.h>

namespace lz::python {

// health() -> JSON; reset_health(kernel glob) -> how many breakers and rows; shadow(1 or -1).
extern PyMethodDef kHealthMethods[];

}  // namespace lz::python
