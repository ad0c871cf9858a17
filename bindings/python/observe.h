// Python callbacks after each run of a kernel (pipeline/dispatch_observer.h).
#pragma once

#include <Python.h>

namespace lz::python {

// Python: observe(callback, waits, on_callers_thread=False) -> handle. callback(operation, kernel id, device, inputs,
// seconds, fallback, error or None, missed) is called after each run of a kernel, on any thread; what it raises is
// reported as unraisable. Kernels that the callback itself runs are not reported. waits: seconds and errors are those
// of the device's work.
PyObject* Observe(PyObject* self, PyObject* args);
// Python: observe_selections(callback, logged_only=False) -> handle. callback(report as JSON, device, inputs, seconds)
// is called after each selection that no cache served; logged_only: those that the policy logs. Hits cost nothing. The
// callback must not call operations.
PyObject* ObserveSelections(PyObject* self, PyObject* args);
// Python: observe_by_nvtx() -> handle, or None if this build has no NVTX.
PyObject* ObserveByNvtx(PyObject* self, PyObject* args);
// Python: exports() -> None, or (metrics.listen, metrics.file, metrics.interval_s, trace.opentelemetry, trace.nvtx,
// log_json) of the process's policy if it wants any of them.
PyObject* Exports(PyObject* self, PyObject* args);
// Python: stop_observing(handle). A run that has begun may still be reported.
PyObject* StopObserving(PyObject* self, PyObject* args);

}  // namespace lz::python
