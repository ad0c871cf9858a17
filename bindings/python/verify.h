// Conformance cases for Python: the tests run host kernels and torch references on the same cases as the C++ ones.
#pragma once

#include <Python.h>

namespace lz::python {

// Python: verify_case(operation, line) -> {"refused": field, "layout": name or None, "arguments": {name: value}}.
// A tensor is (bytes, dtype, shape, strides, offset of its first element); arguments that the line does not name
// are missing.
PyObject* VerifyCase(PyObject* self, PyObject* args);
// Python: verify_compare(operation, line, outputs, numerics="") -> [{"output", "ok", "measure", "position",
// "wanted", "got", "error", "bound", "text"}]. `outputs`: (bytes, dtype, shape) of each, row-major in the case's
// layout; None: absent.
PyObject* VerifyCompare(PyObject* self, PyObject* args);
// Python: verify_random(operation, seed, broken=False) -> the line for this seed, nearly always a valid call; with
// broken one that must be refused, or "".
PyObject* VerifyRandom(PyObject* self, PyObject* args);

}  // namespace lz::python
