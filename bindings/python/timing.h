// Timing of calls in turns, and what is concluded from such times: what tuning and `bench ops` are made of.
#pragma once

#include <Python.h>

namespace lz::python {

// Python: time_rounds(sides, order, device=-1, stream=0) -> [(us, host us), ...] of each sample; paired_ratio(a, b),
// spread_of(first, again), replaces(ratio, low, high, spread, least), survivors(us, kept, limit, least),
// majority_of(distances, n, bound), best_variants(us, weights, kernels, k): see perfdb/compare.h;
// record_served_calls(on), served_calls(), flush_served_calls(seconds): see engine/served_calls.h.
extern PyMethodDef kTimingMethods[];

// True for what prepare returns; calls it without Python's protocol of calls. In prepared.cpp.
bool IsPrepared(PyObject* object);
PyObject* RunPrepared(PyObject* prepared, PyObject* const* tensors, Py_ssize_t count);

}  // namespace lz::python
