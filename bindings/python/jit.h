// Kernels that are compiled at their first call of a kind, for Python.
#pragma once

#include <Python.h>

namespace lz::python {

// observe_jit_wanted(callback), observe_calls(callback) -> handle; set_jit(operation, kernel id, kind, ready).
extern PyMethodDef kJitMethods[];

}  // namespace lz::python
