// Limits of this machine for Python: memory, arithmetic and threads (bench/roofline), which kernels are compared with.
#pragma once

#include <Python.h>

namespace lz::python {

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
