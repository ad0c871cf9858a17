// Python callbacks after each run of a kernel (pipeline/dispatch_observer.h).
#pragma once

#include <Python.h>

namespace lz::python {

// Python: observe(callback, waits) -> handle. callback(operation, kernel id, device, inputs, seconds, fallback, error
// or None) is called after each run of a kernel, on any thread; what it raises is reported as unraisable. Kernels that
// the callback itself runs are not reported. waits: seconds and errors are those of the device's work.
PyObject* Observe(PyObject* self, PyObject* args);
// Python: stop_observing(handle). A run that has begun may still be reported.
PyObject* StopObserving(PyObject* self, PyObject* args);

}  // namespace lz::python
