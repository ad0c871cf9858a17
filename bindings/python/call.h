// One operation as a Python callable: arguments in, kernel run, outputs back. Generated from the contract at import:
// there is no code per operation.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "bindings/draws.h"
#include "engine/engine.h"
#include "gil.h"

namespace lz::door {

// The callable's state; lives as long as the process. The GIL guards it.
struct OpDoor {
  const Operation* op;
  std::vector<PyObject*> names;     // interned, in the contract's order of parameters
  size_t num_positional = 0;        // parameters before the keyword-only ones
  std::vector<PyObject*> layouts;   // interned names
  bool views = false;               // tensors may have other axes than the contract's: layerzero._ranks views them
  std::optional<DrawParams> draws;  // which parameters are random numbers; generator= may draw them
  std::string doc;
  PyMethodDef method{};
  Box site;                                                  // the last choice
  std::vector<std::pair<PyObject*, int64_t>> kernel_scopes;  // kernel= values met, with their policy scope
};

// What the Python side provides: see set_hooks in module.cpp.
struct Hooks {
  PyObject* raise = nullptr;             // raise(code, field, wanted, got, fix, text, explanation json or None)
  PyObject* slow = nullptr;              // slow(name, args, kwargs): modes, gradients, other kinds of arrays
  PyObject* resolve = nullptr;           // resolve(kernel_id, adapter, source) -> callable
  PyObject* scope_of_context = nullptr;  // () -> policy scope of the current context
  // selected(operation, kernel id, platform, libraries): a choice that is worth a line. `libraries` is None for a
  // kernel of choice; for a reference, the names of the unusable libraries whose kernels would have taken such calls.
  PyObject* selected = nullptr;
  PyObject* failed = nullptr;   // failed(operation, text): a kernel failed and another one has answered
  PyObject* guessed = nullptr;  // guessed(text, seconds): a layout was guessed; may raise, as warnings do
  PyObject* draw = nullptr;     // draw(tensor of rows, pairs) -> uniform numbers for a call without a seed
  PyObject* prove = nullptr;    // prove(backend, probe, adapters): error text, "" or None; see HostRuntime
  PyObject* begin = nullptr;    // begin() -> bool, see HostRuntime
};
extern Hooks g_hooks;
extern int64_t g_open_scopes;  // 0: no context has a scope, the hook is not asked

// Calls a kernel that lives in Python on copies and casts of its inputs; nullptr with a Python error.
PyObject* CallHost(const KernelEntry& kernel, const Request& r, PyObject* const* tensors, const Transforms& transforms);
// The same; its results are checked against the contract. A failure that may have left inputs half written is a
// KernelExecutionError that says so, caused by what the kernel raised.
PyObject* RunHost(const KernelEntry& kernel, const Request& r, PyObject* const* tensors, const Transforms& transforms);
// Whether an exception is one of LayerZero's.
bool IsOwn(PyObject* error);
// What callers catch by torch's name for it, and what another kernel would raise too.
bool IsOutOfMemory(PyObject* error);
// What a kernel raised, as a status: LayerZero's own exceptions keep their code, all others are kKernelFailed.
Status StatusOf(PyObject* error, const std::string& field);
// A plan's host kernel, or, when it raises and MayFallBack allows it, the plan's fallback: counted, with a line of log.
PyObject* CallHostOrFallback(const Plan& plan, Request& r, PyObject* const* tensors, PyObject* out);
// What the other libraries of the process get from Python: see HostRuntime.
const HostRuntime* PythonRuntime();
// Python: time_calls(starts, ended), once: starts(on a device) before each kernel that another library than this one or
// a program runs, ended(operation, kernel id, tensors, on a device) after it.
PyObject* TimeCalls(PyObject* self, PyObject* args);

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
inline PyCFunction AsCFunction(Fast f) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f)); }

PyObject* MakeCallable(const Operation& op, PyObject* module);
// The state of a callable that MakeCallable made; nullptr for another object.
OpDoor* DoorOf(PyObject* callable);

// Drops the error of a hook; an interrupt by the user is raised where Python code goes on.
void ClearHookError();
// A fallback, or any choice where the policy logs them, is worth a line. Never an error of the call.
void Tell(const Request& request, const Plan& plan);
PyObject* SelectionCounts();  // [(operation, kernel id, count)]: a new reference
void TellFailed(const Request& request, const Plan& plan, const std::string& why);
// Warns of a guessed layout, once for each place in the program and its shapes. False: the user has made the warning an
// error.
bool TellGuess(const Request& request);
inline bool TellLayout(const Request& request) { return !request.layout_guessed || TellGuess(request); }
// Selects with the GIL released: another thread may be selecting the same, or waiting for us.
Result<const Plan*> SelectOutside(Request& request, Box* site);
// Stages 3 to 8 of a prepared request. `tensors`: its inputs as objects; `out`: what the caller gave, or nullptr.
PyObject* SelectAndRun(Request& request, Box* site, PyObject* const* tensors, PyObject* out);

// Python: prepare(callable, args, kwargs, fixed) -> callable of the tensors alone. `fixed`: what layerzero._ranks needs
// to view the tensors of its calls, a dict, or None.
PyObject* Prepare(PyObject* self, PyObject* args);
// Python: explain(callable, args, kwargs, device, of_chosen) -> JSON text. `of_chosen`: Proofs::kChosen.
PyObject* Explain(PyObject* self, PyObject* args);
// Python: check(callable, args, kwargs): raises what is wrong with a call, without running it.
PyObject* Check(PyObject* self, PyObject* args);
// Python: which(callable, args, kwargs) -> (kernel id, plan id).
PyObject* Which(PyObject* self, PyObject* args);

// Python: call_differentiable(callable, args, kwargs): the chosen kernel that carries gradients; some tensor wants one.
// NotImplemented under torch's modes.
PyObject* CallDifferentiable(PyObject* self, PyObject* args);

// Raises the Python exception for a status; always returns nullptr.
PyObject* Raise(const Status& status, Request* request = nullptr);

}  // namespace lz::door
