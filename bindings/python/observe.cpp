#include "observe.h"

#include <memory>
#include <string>
#include <utility>

#include "call.h"
#include "gil.h"
#include "nvtx.h"
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
  if (IsCpu(device)) return "cpu";
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

// What a callback returned; its exception is reported as unraisable.
void Finish(PyObject* callback, PyObject* done) {
  if (!done && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
    ClearHookError();
  } else if (!done) {
    PyErr_WriteUnraisable(callback);
  }
  Py_XDECREF(done);
}

class PythonObserver : public Observer {
 public:
  PythonObserver(PyObject* callback, bool waits, bool on_callers_thread)
      : callback_(callback), waits_(waits), on_callers_thread_(on_callers_thread) {
    Py_IncRef(callback_);
  }
  ~PythonObserver() override {
    const Gil gil;
    Py_DecRef(callback_);
  }
  bool waits() const override { return waits_; }
  bool on_callers_thread() const override { return on_callers_thread_; }

  void Ended(const KernelRun& run, const Status& status, double seconds) override {
    static thread_local bool inside = false;
    if (inside) return;
    const Gil gil;
    const PendingError pending;
    inside = true;
    const Request& r = run.request;
    const std::string operation(r.op->name()), device = DeviceText(r.where), error = pending.Text(status);
    PyObject* done = PyObject_CallFunction(
        callback_, "ssssdOzO", operation.c_str(), run.kernel.id.c_str(), device.c_str(), InputsText(r).c_str(), seconds,
        run.fallback ? Py_True : Py_False, error.empty() ? nullptr : error.c_str(), run.missed ? Py_True : Py_False);
    Finish(callback_, done);
    inside = false;
  }

 private:
  PyObject* callback_;
  bool waits_;
  bool on_callers_thread_;
};

class PythonSelectionObserver : public Observer {
 public:
  PythonSelectionObserver(PyObject* callback, bool logged_only) : callback_(callback), logged_only_(logged_only) {
    Py_IncRef(callback_);
  }
  ~PythonSelectionObserver() override {
    const Gil gil;
    Py_DecRef(callback_);
  }
  void Ended(const KernelRun&, const Status&, double) override {}
  bool of_runs() const override { return false; }

  void Selected(const KernelSelection& selection) override {
    Engine& engine = Engine::Get();
    const Request& r = selection.request;
    if (logged_only_ && !engine.LogsSelections(r.policy)) return;
    const std::string report = engine.SelectionText(r, selection.report);
    const std::string device = DeviceText(r.where), inputs = InputsText(r);
    const Gil gil;
    const PendingError pending;
    Finish(callback_,
           PyObject_CallFunction(callback_, "sssd", report.c_str(), device.c_str(), inputs.c_str(), selection.seconds));
  }

 private:
  PyObject* callback_;
  bool logged_only_;
};

// Keeps an observer from now on. Returns its handle.
PyObject* Added(std::shared_ptr<Observer> observer) {
  PyObject* handle = PyLong_FromVoidPtr(observer.get());
  if (handle) AddObserver(std::move(observer));
  return handle;
}

PyObject* NotCallable() {
  return Raise(Status(StatusCode::kWrongType, {.field = "callback", .wanted = "a function", .got = "another object"}));
}

}  // namespace

PyObject* Observe(PyObject*, PyObject* args) {
  PyObject* callback;
  int waits, on_callers_thread = 0;
  if (!PyArg_ParseTuple(args, "Op|p", &callback, &waits, &on_callers_thread)) return nullptr;
  if (!PyCallable_Check(callback)) return NotCallable();
  return Added(std::make_shared<PythonObserver>(callback, waits != 0, on_callers_thread != 0));
}

PyObject* ObserveSelections(PyObject*, PyObject* args) {
  PyObject* callback;
  int logged_only = 0;
  if (!PyArg_ParseTuple(args, "O|p", &callback, &logged_only)) return nullptr;
  if (!PyCallable_Check(callback)) return NotCallable();
  return Added(std::make_shared<PythonSelectionObserver>(callback, logged_only != 0));
}

PyObject* ObserveByNvtx(PyObject*, PyObject*) {
  std::shared_ptr<Observer> observer = MakeNvtxObserver();
  if (!observer) Py_RETURN_NONE;
  return Added(std::move(observer));
}

PyObject* Exports(PyObject*, PyObject*) {
  const auto policy = Engine::Get().PolicyInForce();
  if (!policy) Py_RETURN_NONE;
  const Policy& p = *policy;
  const auto flag = [](bool on) { return on ? Py_True : Py_False; };
  const bool any =
      !p.metrics_listen.empty() || !p.metrics_file.empty() || p.trace_opentelemetry || p.trace_nvtx || p.log_json;
  if (!any) Py_RETURN_NONE;
  return Py_BuildValue("ssdOOO", p.metrics_listen.c_str(), p.metrics_file.c_str(), p.metrics_interval_s,
                       flag(p.trace_opentelemetry), flag(p.trace_nvtx), flag(p.log_json));
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
