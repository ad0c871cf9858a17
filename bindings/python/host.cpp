// Python kernels and Python's context for libraries that have no Python symbol (torch's operators): tensors cross as
// DLPack views, results are copied into the outputs that the caller has allocated. A call costs one tensor object for
// each argument and one copy for each output more than a call of the same kernel from Python.
#include "arguments.h"
#include "bindings/profiler_event.h"
#include "call.h"
#include "outputs.h"
#include "torch_bridge.h"

namespace lz::python {
namespace {

// The text, or the attribute's text; empty where there is none.
std::string TextOf(PyObject* text) {
  const char* utf8 = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, nullptr) : nullptr;
  std::string copy = utf8 ? utf8 : "";
  PyErr_Clear();
  Py_XDECREF(text);
  return copy;
}
std::string TextOf(PyObject* object, const char* attribute) {
  return TextOf(PyObject_GetAttrString(object, attribute));
}

// LayerZero's own exceptions are statuses again: their class has a code. Those that the engine raised have parts too,
// those of Python code only a text.
Status OwnStatus(PyObject* error, const std::string& field) {
  PyObject* number = PyObject_GetAttrString(error, "code");
  const long code = number && PyLong_Check(number) ? PyLong_AsLong(number) : 0;
  PyErr_Clear();
  Py_XDECREF(number);
  if (!IsOwn(error) || code <= 0 || code > long(StatusCode::kUntrustedFile)) return {};
  ErrorParts parts{TextOf(error, "field"), TextOf(error, "wanted"), TextOf(error, "got"), TextOf(error, "fix")};
  if (parts.field.empty()) parts = {.field = field, .got = TextOf(PyObject_Str(error))};
  return Status(StatusCode(code), std::move(parts));
}

}  // namespace

bool IsOutOfMemory(PyObject* error) {
  if (PyErr_GivenExceptionMatches(error, PyExc_MemoryError)) return true;
  PyObject* name = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(error)), "__name__");
  const bool is = name && PyUnicode_CompareWithASCIIString(name, "OutOfMemoryError") == 0;
  Py_XDECREF(name);
  return is;
}

bool LacksMemory() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const bool lacks = value && IsOutOfMemory(value);
  PyErr_Restore(type, value, trace);
  return lacks;
}

bool IsOwn(PyObject* error) { return PyObject_HasAttrString(error, "field") && PyObject_HasAttrString(error, "fix"); }

Status StatusOf(PyObject* error, const std::string& field) {
  Status status = error ? OwnStatus(error, field) : Status();
  if (!status.ok()) return status;
  std::string text = error ? TextOf(PyObject_Repr(error)) : "";
  if (text.empty()) text = "a Python error";
  if (error && IsOutOfMemory(error)) {
    return Status(StatusCode::kOutOfMemory, {.field = field, .wanted = "enough memory", .got = std::move(text)});
  }
  if (IsLostContext(text)) {
    return Status(StatusCode::kContextLost, {.field = field,
                                             .wanted = "a device that works",
                                             .got = std::move(text),
                                             .fix = "start the process again: no kernel can use this device any more"});
  }
  return Status(StatusCode::kKernelFailed, {.field = field, .wanted = "a result", .got = std::move(text)});
}

namespace {

// The pending Python error, which is cleared.
Status PythonFailure(const std::string& field) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Status status = StatusOf(value, field);
  for (PyObject* object : {type, value, trace}) Py_XDECREF(object);
  return status;
}

// The tensors of one call as Python objects; what was not taken over is released here.
struct Borrowed {
  explicit Borrowed(HostTensor* tensors, size_t count) : lent(tensors), n(count) {}
  ~Borrowed() {
    StopIfUnwound();
    for (size_t i = 0; i < n; ++i) {
      Py_XDECREF(objects[i]);
      if (lent[i].owner) lent[i].release(lent[i].owner);
    }
  }
  bool Make() {
    for (size_t i = 0; i < n; ++i) {
      if (!lent[i].owner) continue;
      objects[i] = TensorOver(lent[i].view, lent[i].owner, lent[i].release);
      lent[i].owner = nullptr;
      if (!objects[i]) return false;
    }
    return true;
  }
  PyObject* objects[kMaxTensors] = {};
  HostTensor* lent;
  size_t n;
};

// The results have been checked: copy_ alone would broadcast and convert what does not fit. An error is none of the
// kernel: no other one is asked after outputs are half written.
Status CopyResults(const KernelEntry& kernel, PyObject* result, PyObject* const* outputs, size_t num_outputs) {
  Py_ssize_t next = 0;
  for (size_t o = 0; o < num_outputs; ++o) {
    if (!outputs[o]) continue;
    PyObject* one = PyTuple_Check(result) ? PyTuple_GetItem(result, next++) : result;
    PyObject* copied = PyObject_CallMethod(outputs[o], "copy_", "O", one);
    if (!copied) return Status(StatusCode::kInternal, PythonFailure(kernel.id).parts());
    Py_DecRef(copied);
  }
  return {};
}

Status Call(const KernelEntry& kernel, const Request& r, const Transforms& transforms, HostTensor* tensors) {
  Gil gil;
  const size_t inputs = r.op->num_inputs();
  Borrowed borrowed(tensors, inputs + r.op->num_outputs());
  if (!borrowed.Make()) return PythonFailure(kernel.id);
  PyObject* result = CallHost(kernel, r, borrowed.objects, transforms);
  Status status = result ? CheckResults(kernel, r, result) : PythonFailure(kernel.id);
  if (status.code() == StatusCode::kKernelFailed) status = WithWrittenInputs(kernel, r, std::move(status));
  if (status.ok()) status = CopyResults(kernel, result, borrowed.objects + inputs, r.op->num_outputs());
  Py_XDECREF(result);
  return status;
}

Status Context(Request& r) {
  lz_device where{1, 0};
  for (size_t i = 0; i < r.op->num_inputs() && IsCpu(where); ++i) {
    if (r.tensors[i].ndim >= 0) where = r.tensors[i].device;
  }
  if (IsCpu(where) && __atomic_load_n(&g_open_scopes, __ATOMIC_RELAXED) == 0) return {};  // nothing to ask
  Gil gil;
  return ReadContext(&r) ? Status() : PythonFailure("context");
}

Status Guessed(const Request& r) {
  Gil gil;
  if (WarnIfLayoutGuessed(r)) return {};
  return Status(StatusCode::kInvalidRequest, PythonFailure(std::string(r.op->name()) + ": layout").parts());
}

Backend::State Prove(const Backend& backend, const std::vector<std::string>& adapters, std::string* error) {
  Gil gil;
  const FirstCall first;
  if (!g_hooks.prove) return Backend::State::kUnproven;
  PyObject* names = PyTuple_New(Py_ssize_t(adapters.size()));
  for (size_t i = 0; names && i < adapters.size(); ++i) {
    PyTuple_SetItem(names, Py_ssize_t(i), PyUnicode_FromString(adapters[i].c_str()));
  }
  PyObject* answer =
      names ? PyObject_CallFunction(g_hooks.prove, "ssO", backend.name.c_str(), backend.probe.c_str(), names) : nullptr;
  Py_XDECREF(names);
  if (!answer) ClearHookError();
  const bool decided = answer && answer != Py_None;
  *error = TextOf(answer);
  if (!decided) return Backend::State::kUnproven;
  return error->empty() ? Backend::State::kProven : Backend::State::kFailed;
}

bool Begin() {
  Gil gil;
  const FirstCall first;
  PyObject* done = g_hooks.begin ? PyObject_CallNoArgs(g_hooks.begin) : nullptr;
  if (!done) ClearHookError();
  const bool ok = done == Py_True;
  Py_XDECREF(done);
  return ok;
}

int64_t FreeGpuMemory(int32_t ordinal) {
  const Gil gil;
  PyObject* bytes = g_hooks.free ? PyObject_CallFunction(g_hooks.free, "i", int(ordinal)) : nullptr;
  const long long free = bytes ? PyLong_AsLongLong(bytes) : -1;
  if (PyErr_Occurred()) ClearHookError();
  Py_XDECREF(bytes);
  return free;
}

void Selected(const Plan& plan, const Request& r) {
  const Gil gil;
  LogSelection(r, plan);
}
void FellBack(const Plan& plan, const Plan& answered, const Request& r, const Status&) {
  const Gil gil;
  WarnFallback(r, plan, answered, "");
}

const RunListener kListener = {&Selected, &FellBack, &ProfilerEvent::IsActive, &ProfilerEvent::Begin,
                               &ProfilerEvent::End};
HostRuntime g_runtime = {&Call, &Context, &Guessed, &kListener, &Prove, &Begin, &FreeGpuMemory};

}  // namespace

const HostRuntime* PythonRuntime() { return &g_runtime; }

}  // namespace lz::python
