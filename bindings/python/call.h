// One operation as a Python callable: reads arguments, runs the kernel, returns outputs. Generated from the contract at
// import: there is no code per operation.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "bindings/draws.h"
#include "engine/engine.h"
#include "gil.h"

namespace lz::python {

// The callable's state; valid for the life of the process. The GIL guards it.
struct OpBinding {
  const Operation* op;
  std::vector<PyObject*> names;    // interned, in the contract's order of parameters
  size_t num_positional = 0;       // parameters before the keyword-only ones
  std::vector<PyObject*> layouts;  // interned names
  bool views = false;  // tensors may have other axes than the contract's: layerzero.contracts.axes makes views of them
  std::optional<DrawParams> draws;  // the parameters that are random numbers; generator= may draw them
  std::string doc;
  PyMethodDef method{};
  InlineCache site;                                          // call site cache: the last choice
  std::vector<std::pair<PyObject*, int64_t>> kernel_scopes;  // kernel= values so far, with their policy scopes
};

// Functions that the Python side sets: see set_hooks in module.cpp.
struct Hooks {
  PyObject* raise = nullptr;             // raise(code, field, wanted, got, fix, text, explanation json or None)
  PyObject* slow = nullptr;              // slow(name, args, kwargs): modes, gradients, other types of arrays
  PyObject* resolve = nullptr;           // resolve(kernel_id, adapter, source) -> callable
  PyObject* scope_of_context = nullptr;  // () -> policy scope of the current context
  // selected(operation, kernel id, platform, libraries): a choice to be logged. `libraries` is None for a selected
  // kernel; for a reference, the names of the unusable libraries whose kernels would have taken such calls.
  PyObject* selected = nullptr;
  PyObject* failed = nullptr;   // failed(operation, text): a kernel failed and its fallback ran
  PyObject* guessed = nullptr;  // guessed(text, seconds): a layout was guessed; may raise, as warnings do
  PyObject* draw = nullptr;     // draw(tensor of rows, pairs) -> uniform numbers for a call without a seed
  PyObject* prove = nullptr;    // prove(backend, probe, adapters): error text, "" or None; see HostRuntime
  PyObject* begin = nullptr;    // begin() -> bool, see HostRuntime
  PyObject* free = nullptr;     // free(ordinal of a CUDA device) -> bytes, -1: unknown; see HostRuntime
};
extern Hooks g_hooks;
extern int64_t g_open_scopes;  // 0: no context has a scope, and the hook is not called

// Calls a kernel that lives in Python on copies and casts of its inputs; nullptr with a Python error.
PyObject* CallHost(const KernelEntry& kernel, const Request& r, PyObject* const* tensors, const Transforms& transforms);
// The same; its results are checked against the contract. A failure that may have left inputs partly written is a
// KernelExecutionError that reports it, caused by the kernel's exception.
PyObject* RunHost(const KernelEntry& kernel, const Request& r, PyObject* const* tensors, const Transforms& transforms);
// True if an exception is one of LayerZero's.
bool IsOwn(PyObject* error);
// True for the exception that callers catch by torch's name, and that another kernel would raise too.
bool IsOutOfMemory(PyObject* error);
bool LacksMemory();  // the pending exception is one of these
// A kernel's exception as a status: LayerZero's own exceptions keep their code, all others are kKernelFailed.
Status StatusOf(PyObject* error, const std::string& field);
// The functions that the other libraries of the process use to call Python: see HostRuntime.
const HostRuntime* PythonRuntime();

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
inline PyCFunction AsCFunction(Fast f) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f)); }

PyObject* MakeCallable(const Operation& op, PyObject* module);
// The state of a callable that MakeCallable made; nullptr for another object.
OpBinding* BindingOf(PyObject* callable);

// Drops the error of a hook; a KeyboardInterrupt is raised when Python code continues.
void ClearHookError();
// Logs a fallback, or any choice if the policy logs them. Never an error of the call.
void LogSelection(const Request& request, const Plan& plan);
PyObject* SelectionCounts();  // [(operation, kernel id, count)]: a new reference
void WarnFallback(const Request& request, const Plan& plan, const Plan& answered, const std::string& why);
// Warns about a guessed layout, once per place in the program and shapes. Returns false if the user has turned the
// warning into an error.
bool WarnGuessedLayout(const Request& request);
inline bool WarnIfLayoutGuessed(const Request& request) {
  return !request.layout_guessed || WarnGuessedLayout(request);
}
// Selects with the GIL released: another thread may be selecting the same, or waiting for this one.
Result<const Plan*> SelectWithoutGil(Request& request, InlineCache* site);
// The whole call of a request whose tensors and scalars are set (engine/call.h). `tensors`: its inputs as objects;
// `out`: the caller's argument, or nullptr; `differentiable`: a native kernel is refused.
PyObject* RunFromPython(Request& request, InlineCache* site, PyObject* const* tensors, PyObject* out,
                        bool differentiable = false);

// Python: prepare(callable, args, kwargs, fixed) -> callable of the tensors alone. `fixed`: what
// layerzero.contracts.axes needs to view the tensors of its calls, a dict, or None.
PyObject* Prepare(PyObject* self, PyObject* args);
// Python: explain(callable, args, kwargs, device, of_chosen) -> JSON text. `of_chosen`: Proofs::kChosen.
PyObject* Explain(PyObject* self, PyObject* args);
// Python: check(callable, args, kwargs): raises the error of an invalid call, without running it.
PyObject* Check(PyObject* self, PyObject* args);
// Python: which(callable, args, kwargs) -> (kernel id, plan id).
PyObject* Which(PyObject* self, PyObject* args);

// Python: forget_resolved(): each Python kernel is asked for again at its next call.
PyObject* ForgetResolved(PyObject* self, PyObject*);

// Python: call_differentiable(callable, args, kwargs): runs the selected kernel that supports autograd; some tensor
// requires a gradient. NotImplemented under torch's modes.
PyObject* CallDifferentiable(PyObject* self, PyObject* args);

// Raises the Python exception for a status; always returns nullptr.
PyObject* Raise(const Status& status, Request* request = nullptr);

}  // namespace lz::python
