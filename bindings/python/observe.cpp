#include "observe.h"

#include <memory>
#include <string>
#include <utility>

#include "call.h"
#include "gil.h"
#include "pipeline/dispatch_observer.h"

namespace lz::python {
namespace {

// "float32[4,8] float32[8]"
std::string InputsText(const Request& r) {
  std::string text;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (t.ndim < 0) continue;
    text += (text.empty() ? "" : " ") + std::string(Info(DTypeOf(t)).name) + "[";
    for (int32_t d = 0; d < t.ndim; ++d) text += (d ? "," : "") + std::to_string(t.shape[d]);
    text += "]";
  }
  return text;
}

std::string DeviceText(const lz_device& device) {
  if (device.type == 1) return "cpu";
  return (device.type == 2 ? "cuda:" : "device " + std::to_string(device.type) + ":") + std::to_string(device.id);
}

// Keeps the pending exception of a kernel while Python code runs.
class PendingError {
 public:
  PendingError() {
    PyErr_Fetch(&type_, &value_, &trace_);
    PyErr_NormalizeException(&type_, &value_, &trace_);
  }
  ~PendingError() { PyErr_Restore(type_, value_, trace_); }
  PendingError(const PendingError&) = delete;
  PendingError& operator=(const PendingError&) = delete;

  // Its text, or that of `status`; empty if both are ok.
  std::string Text(const Status& status) const {
    if (!value_) return status.ok() ? "" : status.Text();
    PyObject* repr = PyObject_Repr(value_);
    const char* text = repr ? PyUnicode_AsUTF8AndSize(repr, nullptr) : nullptr;
    std::string found = text ? text : "a Python exception";
    if (!text) PyErr_Clear();
    Py_XDECREF(repr);
    return found;
  }

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

class PythonObserver : public Observer {
 public:
  PythonObserver(PyObject* callback, bool waits) : callback_(callback), waits_(waits) { Py_IncRef(callback_); }
  ~PythonObserver() override {
    const Gil gil;
    Py_DecRef(callback_);
  }
  bool waits() const override { return waits_; }

  void Ended(const KernelRun& run, const Status& status, double seconds) override {
    static thread_local bool inside = false;
    if (inside) return;
    const Gil gil;
    const PendingError pending;
    inside = true;
    const Request& r = run.request;
    const std::string operation(r.op->name()), device = DeviceText(r.where), error = pending.Text(status);
    PyObject* done = PyObject_CallFunction(callback_, "ssssdOz", operation.c_str(), run.kernel.id.c_str(),
                                           device.c_str(), InputsText(r).c_str(), seconds,
                                           run.fallback ? Py_True : Py_False, error.empty() ? nullptr : error.c_str());
    if (!done && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
      ClearHookError();
    } else if (!done) {
      PyErr_WriteUnraisable(callback_);
    }
    Py_XDECREF(done);
    inside = false;
  }

 private:
  PyObject* callback_;
  bool waits_;
};

}  // namespace

PyObject* Observe(PyObject*, PyObject* args) {
  PyObject* callback;
  int waits;
  if (!PyArg_ParseTuple(args, "Op", &callback, &waits)) return nullptr;
  if (!PyCallable_Check(callback)) {
    return Raise(
        Status(StatusCode::kWrongType, {.field = "callback", .wanted = "a function", .got = "another object"}));
  }
  auto observer = std::make_shared<PythonObserver>(callback, waits != 0);
  PyObject* handle = PyLong_FromVoidPtr(static_cast<Observer*>(observer.get()));
  if (handle) AddObserver(std::move(observer));
  return handle;
}

PyObject* StopObserving(PyObject*, PyObject* args) {
  PyObject* handle;
  if (!PyArg_ParseTuple(args, "O", &handle)) return nullptr;
  const void* observer = PyLong_AsVoidPtr(handle);
  if (!observer && PyErr_Occurred()) return nullptr;
  {
    const ReleasedGil released;  // the last reference to an observer takes the GIL
    RemoveObserver(static_cast<const Observer*>(observer));
  }
  Py_RETURN_NONE;
}

}  // namespace lz::python
