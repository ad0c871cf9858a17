// The pending Python exception as a value.
#pragma once

#include <Python.h>

#include "gil.h"

namespace lz::python {

// Holds the pending Python exception, which is cleared.
class Exception {
 public:
  Exception() {
    PyErr_Fetch(&type_, &value_, &trace_);
    PyErr_NormalizeException(&type_, &value_, &trace_);
    if (value_ && trace_) PyException_SetTraceback(value_, trace_);
  }
  ~Exception() {
    StopIfUnwound();
    for (PyObject* object : {type_, value_, trace_}) Py_XDECREF(object);
  }
  Exception(const Exception&) = delete;
  Exception& operator=(const Exception&) = delete;

  PyObject* value() const { return value_; }
  // Makes it pending again, replacing any other.
  PyObject* Raise() {
    PyErr_Restore(type_, value_, trace_);
    type_ = value_ = trace_ = nullptr;
    return nullptr;
  }
  // Sets it as the cause of the pending exception.
  void Cause() {
    Exception raised;
    PyException_SetCause(raised.value(), value_);
    value_ = nullptr;
    raised.Raise();
  }

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

}  // namespace lz::python
