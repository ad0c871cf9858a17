#include "call.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "arguments.h"
#include "bindings/profiler_event.h"
#include "docstring.h"
#include "engine/call.h"
#include "exception.h"
#include "outputs.h"
#include "raising_caller.h"
#include "random.h"
#include "torch_bridge.h"

namespace lz::python {

Hooks g_hooks;
int64_t g_open_scopes = 0;

namespace {

constexpr const char* kBindingCapsule = "layerzero.operation";

// Calls with fewer elements finish before another thread could use the GIL.
constexpr int64_t kReleaseGilAbove = 65536;

std::vector<PyObject*>& HostCallables() {  // by kernel index; nullptr: not resolved yet
  static auto* callables = new std::vector<PyObject*>;
  return *callables;
}

PyObject* ScalarObject(const Param& p, const lz_scalar& s) {
  if (!s.given) Py_RETURN_NONE;
  switch (p.kind) {
    case ParamKind::kFloat: return PyFloat_FromDouble(s.value.f);
    case ParamKind::kBool: return PyBool_FromLong(s.value.i != 0);
    case ParamKind::kChoice: {
      const std::string_view name = ChoiceName(p.choices, s.value.i);
      return PyUnicode_FromStringAndSize(name.data(), Py_ssize_t(name.size()));
    }
    default: return PyLong_FromLongLong(s.value.i);
  }
}

PyObject* TorchDType(DType dtype) {
  PyObject* torch = PyImport_ImportModule("torch");
  PyObject* object = torch ? PyObject_GetAttrString(torch, std::string(Info(dtype).name).c_str()) : nullptr;
  Py_XDECREF(torch);
  return object;
}

PyObject* To(PyObject* tensor, DType dtype) {
  PyObject* name = TorchDType(dtype);
  PyObject* converted = name ? PyObject_CallMethod(tensor, "to", "O", name) : nullptr;
  Py_XDECREF(name);
  return converted;
}

// Converts an index tensor to the other index dtype. Values that do not fit int32 are an error in host memory; on a
// device, which is not read, they become the limits of int32, which are also outside every tensor.
PyObject* OtherIndices(const Request& r, size_t i, PyObject* tensor) {
  const DType dtype = OtherIndexDType(DTypeOf(r.tensors[i]));
  if (dtype == DType::kI64) return To(tensor, dtype);
  if (r.on_cpu()) {
    const Status fits = IndicesFit(r, i);
    return fits.ok() ? To(tensor, dtype) : Raise(fits);
  }
  PyObject* clamped = PyObject_CallMethod(tensor, "clamp", "ii", INT32_MIN, INT32_MAX);
  PyObject* converted = clamped ? To(clamped, dtype) : nullptr;
  Py_XDECREF(clamped);
  return converted;
}

// Returns a new reference to the tensor that a kernel gets for argument `i`; nullptr with an error.
PyObject* HostTensor(const Request& r, size_t i, PyObject* tensor, const Transforms& transforms) {
  if (!tensor) Py_RETURN_NONE;
  if (tensor != Py_None) {
    if (transforms.cast >> i & 1) return To(tensor, r.promoted);
    if (transforms.indices >> i & 1) return OtherIndices(r, i, tensor);
    if (transforms.contiguous >> i & 1) return PyObject_CallMethod(tensor, "contiguous", nullptr);
  }
  Py_IncRef(tensor);
  return tensor;
}

}  // namespace

PyObject* ForgetResolved(PyObject*, PyObject*) {
  for (PyObject*& callable : HostCallables()) callable = nullptr;  // not released: a call may be running it
  Py_RETURN_NONE;
}

namespace {

// An adapter that plans at its first call of a kind has an attribute that makes this call outside the capture.
bool PlanBeforeCapture(PyObject* callable, PyObject* args) {
  PyObject* plan = PyObject_GetAttrString(callable, "before_capture");
  if (!plan) {
    PyErr_Clear();
    return true;
  }
  PyObject* done = PyObject_CallObject(plan, args);
  Py_DecRef(plan);
  Py_XDECREF(done);
  return done != nullptr;
}

}  // namespace

// A host kernel gets every parameter by position in the contract's order, with final scalars, then the layout if there
// is one: adapters are plain functions of that signature.
PyObject* CallHost(const KernelEntry& kernel, const Request& r, PyObject* const* tensors,
                   const Transforms& transforms) {
  std::vector<PyObject*>& callables = HostCallables();
  if (callables.size() <= kernel.index) callables.resize(kernel.index + 1, nullptr);
  PyObject* callable = callables[kernel.index];
  if (!callable) {
    const FirstCall first;
    callable =
        PyObject_CallFunction(g_hooks.resolve, "sss", kernel.id.c_str(), kernel.adapter.c_str(), kernel.source.c_str());
    if (!callable) return nullptr;
    HostCallables().resize(std::max(HostCallables().size(), size_t(kernel.index) + 1), nullptr);
    HostCallables()[kernel.index] = callable;
  }
  const Operation& op = *r.op;
  const bool layout = !op.layout_names().empty();
  PyObject* args = PyTuple_New(Py_ssize_t(op.num_host_params() + layout));
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    PyObject* t = HostTensor(r, i, tensors[i], transforms);
    if (!t) {
      Py_DecRef(args);
      return nullptr;
    }
    PyTuple_SetItem(args, op.input_params()[i], t);
  }
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    if (op.scalar_params()[i] >= op.num_host_params()) continue;
    PyTuple_SetItem(args, op.scalar_params()[i], ScalarObject(op.scalar(i), r.scalars[i]));
  }
  if (layout) {
    PyTuple_SetItem(args, Py_ssize_t(op.num_host_params()),
                    PyUnicode_FromString(op.layout_names()[size_t(r.layout)].c_str()));
  }
  const bool capturing = (r.flags & LZ_FLAG_CAPTURING) != 0;
  PyObject* result = !capturing || PlanBeforeCapture(callable, args) ? PyObject_CallObject(callable, args) : nullptr;
  Py_DecRef(args);
  return result;
}

namespace {

// Raises LayerZero's own error for a failed kernel, with the kernel's exception as its cause.
PyObject* RaiseFailed(const KernelEntry& kernel, const Request& r) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  Exception error;
  Status failed = StatusOf(error.value(), std::string(r.op->name()) + ": kernel " + kernel.id);
  const bool no_memory = failed.code() == StatusCode::kOutOfMemory;
  const bool of_kernel = failed.code() == StatusCode::kKernelFailed || failed.code() == StatusCode::kContextLost;
  if (!no_memory && !of_kernel) return error.Raise();
  const std::string before = failed.parts().fix;
  failed = WithWrittenInputs(kernel, r, std::move(failed));
  const bool written = failed.parts().fix != before;
  if (!written && (IsOwn(error.value()) || no_memory)) return error.Raise();
  Raise(failed);
  error.Cause();
  return nullptr;
}

}  // namespace

PyObject* RunHost(const KernelEntry& kernel, const Request& r, PyObject* const* tensors, const Transforms& transforms) {
  PyObject* result = CallHost(kernel, r, tensors, transforms);
  if (!result) return RaiseFailed(kernel, r);
  if (Status status = CheckResults(kernel, r, result); !status.ok()) {
    Py_DecRef(result);
    return Raise(WithWrittenInputs(kernel, r, std::move(status)));
  }
  return result;
}

void ClearHookError() {
  const bool interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0;
  PyErr_Clear();
  if (interrupted) PyErr_SetInterrupt();
}

Result<const Plan*> SelectWithoutGil(Request& r, InlineCache* site) {
  const FirstCall first;
  InlineCache fresh;
  Result<const Plan*> plan = [&] {
    const ReleasedGil released;
    return Engine::Get().Select(r, fresh);
  }();
  if (plan.ok()) {
    *site = fresh;
    LogSelection(r, **plan);
  }
  return plan;
}

namespace {

// Copies a host kernel's result, whose shape and dtype have been checked, to out=, unless that is nullptr.
PyObject* IntoOut(PyObject* result, PyObject* out) {
  if (!out) return result;
  PyObject* copied = nullptr;
  if (!PyTuple_Check(result)) {
    PyObject* target = PyTuple_Check(out) ? PyTuple_GetItem(out, 0) : out;
    copied = PyObject_CallMethod(target, "copy_", "O", result);
  } else {
    copied = PyTuple_New(PyTuple_Size(out));
    for (Py_ssize_t i = 0; copied && i < PyTuple_Size(out); ++i) {
      PyObject* one = PyObject_CallMethod(PyTuple_GetItem(out, i), "copy_", "O", PyTuple_GetItem(result, i));
      if (one) {
        PyTuple_SetItem(copied, i, one);
      } else {
        Py_DecRef(copied);
        copied = nullptr;
      }
    }
  }
  Py_DecRef(result);
  return copied;
}

int64_t NumElements(const Request& r) {
  int64_t elements = 0;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) elements += lz::NumElements(r.tensors[i]);
  return elements;
}

// A call from Python. While it lasts an exception may be pending; Finish releases what it holds.
class PythonCaller : public RaisingCaller {
 public:
  PythonCaller(PyObject* const* tensors, PyObject* out, bool differentiable)
      : tensors_(tensors), out_(out == Py_None ? nullptr : out), differentiable_(differentiable) {}

  Status LayoutGuessed(const Request& r) { return WarnGuessedLayout(r) ? Status() : PythonError(); }
  Result<const Plan*> Select(Engine&, Request& r, InlineCache* site) { return SelectWithoutGil(r, site); }

  Status BindMemory(const KernelEntry& kernel, const Transforms& transforms, Request& r) {
    if (differentiable_) [[unlikely]] {
      PyErr_Format(PyExc_RuntimeError, "%s carries no gradient", kernel.id.c_str());
      return PythonError();
    }
    if (r.op->mutated_inputs() != 0 && !MarkWritten(r, tensors_)) return PythonError();
    if (result_ || workspace_) [[unlikely]]
      Release(r);  // of a kernel that failed
    result_ = MakeOutputs(r, out_);
    const bool bound = result_ && (r.on_cpu() || MakeWorkspace(kernel, transforms, &r, &workspace_));
    return bound ? Status() : PythonError();
  }

  template <class Run>
  Status RunNative(const KernelEntry& kernel, Request& r, Run&& run) {
    const ProfilerEvent event(kernel);
    if (r.on_cpu()) parallel_ = TorchParallel();
    if (parallel_.run) r.parallel = &parallel_;
    const ReleasedGil released(r.on_cpu() && NumElements(r) > kReleaseGilAbove);  // launches on devices return at once
    return run();
  }

  Status RunHost(const KernelEntry& kernel, const Transforms& transforms, Request& r) {
    Py_CLEAR(result_);  // of a native kernel that failed
    if (out_ && !CheckGivenOutputs(r, out_)) return PythonError();
    const ProfilerEvent event(kernel);
    PyObject* result = lz::python::RunHost(kernel, r, tensors_, transforms);
    if (!result) return Failure(kernel);
    if (!out_ && Engine::Get().is_shadowed() && !CheckGivenOutputs(r, result)) PyErr_Clear();  // where Check reads it
    result_ = IntoOut(result, out_);
    return result_ ? Status() : PythonError();
  }

  void FellBack(const Plan& plan, const Plan& answered, const Request& r, const Status&) {
    PyObject* repr = error() ? PyObject_Repr(error()) : nullptr;
    const char* why = repr ? PyUnicode_AsUTF8AndSize(repr, nullptr) : error() ? "a Python error" : "";
    if (PyErr_Occurred()) PyErr_Clear();
    WarnFallback(r, plan, answered, why ? why : "a Python error");
    Py_XDECREF(repr);
  }

  PyObject* Finish(const Status& status, Request& r) {
    Py_XDECREF(workspace_);  // the allocator reuses it in the order of this stream
    if (status.ok()) return result_;
    Py_XDECREF(result_);
    return Raise(status, &r);
  }

 private:
  void Release(Request& r) {
    Py_CLEAR(result_);
    Py_CLEAR(workspace_);
    r.workspace = nullptr;
    r.workspace_bytes = 0;
  }

  PyObject* const* tensors_;
  PyObject* out_;  // nullptr: none was given
  bool differentiable_;
  PyObject *result_ = nullptr, *workspace_ = nullptr;
  lz_parallel parallel_{};
};

}  // namespace

PyObject* RunFromPython(Request& r, InlineCache* site, PyObject* const* tensors, PyObject* out, bool differentiable) {
  PythonCaller caller(tensors, out, differentiable);
  const Status status = RunCall(Engine::Get(), r, site, caller);
  return caller.Finish(status, r);
}

namespace {

PyObject* CallSlowPath(const OpBinding& binding, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  if (!g_hooks.slow) {
    PyErr_SetString(PyExc_RuntimeError, "layerzero: import layerzero, not layerzero._layerzero");
    return nullptr;
  }
  PyObject* positional = PyTuple_New(num_args);
  for (Py_ssize_t i = 0; i < num_args; ++i) {
    Py_IncRef(args[i]);
    PyTuple_SetItem(positional, i, args[i]);
  }
  PyObject* named = PyDict_New();
  for (Py_ssize_t k = 0; keywords && k < PyTuple_Size(keywords); ++k) {
    PyDict_SetItem(named, PyTuple_GetItem(keywords, k), args[num_args + k]);
  }
  const FirstCall first;
  PyObject* result = PyObject_CallFunction(g_hooks.slow, "sOO", binding.method.ml_name, positional, named);
  Py_DecRef(positional);
  Py_DecRef(named);
  return result;
}

PyObject* CallOperation(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  auto* binding = static_cast<OpBinding*>(PyCapsule_GetPointer(self, kBindingCapsule));
  Arguments a;
  if (!ParseArguments(*binding, args, num_args, keywords, &a)) return nullptr;
  Request r(*binding->op);
  const bool slow = ReadTensors(*binding, a, &r) != Read::kOk || (binding->views && NeedsView(*binding, a, r));
  if (slow) return CallSlowPath(*binding, args, num_args, keywords);
  Drawn drawn;
  if (NeedsDraw(*binding, a) && !drawn.Into(*binding, &a, &r)) return nullptr;
  if (!ReadScalars(*binding, a, &r)) return nullptr;
  PyObject* tensors[kMaxTensors];
  for (size_t i = 0; i < binding->op->num_inputs(); ++i) tensors[i] = a.params[binding->op->input_params()[i]];
  return RunFromPython(r, &binding->site, tensors, a.out);
}

}  // namespace

OpBinding* BindingOf(PyObject* callable) {
  PyObject* self = PyCFunction_GetFunction(callable) ? PyCFunction_GetSelf(callable) : nullptr;
  PyErr_Clear();
  const bool ours = self && PyCapsule_IsValid(self, kBindingCapsule);
  return ours ? static_cast<OpBinding*>(PyCapsule_GetPointer(self, kBindingCapsule)) : nullptr;
}

PyObject* MakeCallable(const Operation& op, PyObject* module) {
  auto* binding = new OpBinding{.op = &op};
  const Contract& c = op.contract();
  for (const Param& p : c.params) {
    binding->names.push_back(PyUnicode_InternFromString(std::string(p.name).c_str()));
    if (!p.keyword_only) ++binding->num_positional;
  }
  for (const std::string& name : op.layout_names())
    binding->layouts.push_back(PyUnicode_InternFromString(name.c_str()));
  binding->views =
      op.fold_scalar() >= 0 || std::ranges::any_of(c.params, [](const Param& p) { return p.batched_rank > 0; });
  binding->draws = DrawParamsOf(op);
  binding->doc = Docstring(c, !binding->layouts.empty(), binding->draws.has_value());
  binding->method.ml_name = c.name.data();  // contracts are string literals
  binding->method.ml_meth = AsCFunction(&CallOperation);
  binding->method.ml_flags = METH_FASTCALL | METH_KEYWORDS;
  binding->method.ml_doc = binding->doc.c_str();
  PyObject* self = PyCapsule_New(binding, kBindingCapsule, nullptr);
  PyObject* name = PyModule_GetNameObject(module);
  PyObject* callable = PyCFunction_NewEx(&binding->method, self, name);
  Py_XDECREF(self);
  Py_XDECREF(name);
  return callable;
}

PyObject* Raise(const Status& status, Request* request) {
  if (PyErr_Occurred()) return nullptr;
  const ErrorParts& p = status.parts();
  const std::string text = status.Text();
  if (!g_hooks.raise) {
    PyErr_SetString(PyExc_RuntimeError, text.c_str());
    return nullptr;
  }
  std::string explanation;
  if (request && status.code() == StatusCode::kNoKernel) {
    auto json = Engine::Get().Explain(*request);
    if (json.ok()) explanation = std::move(*json);
  }
  PyObject* r = PyObject_CallFunction(g_hooks.raise, "isssssz", int(status.code()), p.field.c_str(), p.wanted.c_str(),
                                      p.got.c_str(), p.fix.c_str(), text.c_str(),
                                      explanation.empty() ? nullptr : explanation.c_str());
  Py_XDECREF(r);
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, text.c_str());
  return nullptr;
}

}  // namespace lz::python
