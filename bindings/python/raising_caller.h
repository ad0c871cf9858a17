// What calls from Python share: a Python exception that is pending is a status, and that of a kernel is kept while its
// fallback runs.
#pragma once

#include <Python.h>

#include <optional>

#include "call.h"
#include "engine/call.h"
#include "exception.h"

namespace lz::python {

// The status of a function that has set a Python exception, which Raise leaves as it is. No other kernel answers then.
inline Status PythonError() {
  return Status(LacksMemory() ? StatusCode::kOutOfMemory : StatusCode::kInternal, {.field = "a Python exception"});
}

class RaisingCaller : public Caller {
 public:
  void KeepError(bool keep_first) {
    if (keep_first) return PyErr_Clear();
    error_.reset();
    if (PyErr_Occurred()) error_.emplace();
  }
  void RestoreError() {
    if (error_) error_->Raise();
  }

 protected:
  // The pending exception of a kernel, which stays pending. Ctrl-C and exits are not the kernel's.
  static Status Failure(const KernelEntry& kernel) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return PythonError();
    Exception error;
    Status status = StatusOf(error.value(), kernel.id);
    error.Raise();
    return status;
  }
  PyObject* error() const { return error_ ? error_->value() : nullptr; }  // of the kernel whose fallback runs

 private:
  std::optional<Exception> error_;
};

}  // namespace lz::python
