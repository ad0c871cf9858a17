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

// Python: read_stream(address, bytes) reads memory once, copy_stream(from, to, bytes) copies it, with all threads;
// multiply_adds(rounds) -> how many were done.
PyObject* ReadStream(PyObject* self, PyObject* args);
PyObject* CopyStream(PyObject* self, PyObject* args);
PyObject* MultiplyAdds(PyObject* self, PyObject* args);
// Python: multiply_weights(stored, multiplied, rounds) -> number of weights; the arguments are numbers of StoredAs
// and MultipliedAs.
PyObject* MultiplyWeights(PyObject* self, PyObject* args);
// Python: usable_cpus() -> processors that this process may keep busy, by affinity and by quota.
PyObject* UsableProcessors(PyObject* self, PyObject* args);
// Python: fork_join(loops, team=False) -> (threads, seconds of one parallel loop in which all meet), with the threads
// that calls get; with `team` like the steps of one program's run.
PyObject* ForkJoin(PyObject* self, PyObject* args);

}  // namespace lz::python
