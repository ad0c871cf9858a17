#include "jit.h"

#include <memory>
#include <string>

#include "call.h"
#include "gil.h"

namespace lz::python {
namespace {

PyObject* NotCallable() {
  return Raise(Status(StatusCode::kWrongType, {.field = "callback", .wanted = "a function", .got = "another object"}));
}

// Calls a function with what was made of `call`; its exception is reported as unraisable.
template <class... Values>
void Notify(PyObject* callback, const char* format, Values... values) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* done = PyObject_CallFunction(callback, format, values...);
  if (!done) PyErr_WriteUnraisable(callback);
  Py_XDECREF(done);
  PyErr_Restore(type, value, trace);
}

class CallbackObserver : public Observer {
 public:
  explicit CallbackObserver(PyObject* callback) : callback_(callback) { Py_IncRef(callback_); }
  ~CallbackObserver() override {
    const Gil gil;
    Py_DecRef(callback_);
  }

 protected:
  PyObject* callback_;
};

// callback(operation, kernel id, kind, call as JSON) after a selection for which that kernel would have been better if
// it were compiled. Not in captures, where nothing is begun.
class WantedObserver : public CallbackObserver {
 public:
  using CallbackObserver::CallbackObserver;
  void Ended(const KernelRun&, const Status&, double) override {}
  bool of_runs() const override { return false; }
  void Selected(const KernelSelection& selection) override {
    const SelectionReport& report = selection.report;
    if (!report.wanted || (selection.request.flags & LZ_FLAG_CAPTURING)) return;
    const std::string call = Engine::Get().CallText(selection.request);
    const Gil gil;
    PyObject* kind = PyTuple_New(Py_ssize_t(report.wanted_kind.size()));
    for (size_t i = 0; kind && i < report.wanted_kind.size(); ++i) {
      PyTuple_SetItem(kind, Py_ssize_t(i), PyLong_FromLongLong(report.wanted_kind[i]));
    }
    const KernelEntry& kernel = *report.wanted;
    if (kind) Notify(callback_, "ssOs", kernel.operation.c_str(), kernel.id.c_str(), kind, call.c_str());
    Py_XDECREF(kind);
  }
};

// callback(call as JSON) after each run of a kernel that succeeded.
class CallObserver : public CallbackObserver {
 public:
  using CallbackObserver::CallbackObserver;
  void Ended(const KernelRun& run, const Status& status, double) override {
    if (!status.ok()) return;
    const std::string call = Engine::Get().CallText(run.request);
    const Gil gil;
    Notify(callback_, "s", call.c_str());
  }
};

template <class Kind>
PyObject* Added(PyObject*, PyObject* args) {
  PyObject* callback;
  if (!PyArg_ParseTuple(args, "O", &callback)) return nullptr;
  if (!PyCallable_Check(callback)) return NotCallable();
  auto observer = std::make_shared<Kind>(callback);
  PyObject* handle = PyLong_FromVoidPtr(observer.get());
  if (handle) AddObserver(std::move(observer));
  return handle;
}

PyObject* SetJit(PyObject*, PyObject* args) {
  const char *operation, *kernel;
  PyObject* values;
  int ready;
  if (!PyArg_ParseTuple(args, "ssO!p", &operation, &kernel, &PyTuple_Type, &values, &ready)) return nullptr;
  JitKind kind;
  for (Py_ssize_t i = 0; i < PyTuple_Size(values); ++i) {
    kind.push_back(PyLong_AsLongLong(PyTuple_GetItem(values, i)));
    if (PyErr_Occurred()) return nullptr;
  }
  const Status status = [&] {
    const ReleasedGil released;
    return Engine::Get().SetJit(operation, kernel, kind, ready != 0);
  }();
  if (!status.ok()) return Raise(status);
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef kJitMethods[] = {
    {"observe_jit_wanted", Added<WantedObserver>, METH_VARARGS,
     "observe_jit_wanted(callback): callback(operation, kernel id, kind, call) if the best kernel is not compiled."},
    {"observe_calls", Added<CallObserver>, METH_VARARGS,
     "observe_calls(callback): a handle for stop_observing; callback(call as JSON) after each run of a kernel."},
    {"set_jit", SetJit, METH_VARARGS, "set_jit(operation, kernel id, kind, ready): it is compiled, or never will be."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lz::python
