// The extension module: one callable per contract, and the engine's inspection and configuration as functions that take
// and return JSON. Users import the package layerzero/.
#include <Python.h>

#include <cstring>

#include "call.h"
#include "found_libraries.h"
#include "guard.h"
#include "health.h"
#include "jit.h"
#include "kv_cache.h"
#include "observe.h"
#include "ops/common/philox.h"
#include "perfdb/record.h"
#include "program.h"
#include "roofline.h"
#include "timing.h"
#include "tokenizer.h"
#include "torch_bridge.h"
#include "trust.h"
#include "verify.h"
#include "worker.h"

namespace lz::python {
namespace {

PyObject* Text(const std::string& s) { return PyUnicode_FromStringAndSize(s.data(), Py_ssize_t(s.size())); }
PyObject* NoneOr(const Status& status) {
  if (!status.ok()) return Raise(status);
  Py_RETURN_NONE;
}

PyObject* Contracts(PyObject*, PyObject*) { return Text(Engine::Get().Contracts()); }
PyObject* Devices(PyObject*, PyObject*) { return Text(Engine::Get().Devices()); }
PyObject* SelectionsOf(PyObject*, PyObject*) { return SelectionCounts(); }
PyObject* Stats(PyObject*, PyObject*) { return Text(Engine::Get().Stats()); }
PyObject* ReasonCodes(PyObject*, PyObject*) { return Text(Engine::ReasonCodes()); }
PyObject* Startup(PyObject*, PyObject*) { return NoneOr(Engine::Get().startup()); }
PyObject* BuildId(PyObject*, PyObject*) { return Py_BuildValue("ss", Engine::Version(), Engine::BuildId()); }

PyObject* Kernels(PyObject*, PyObject* args) {
  const char* name = nullptr;
  int constraints = 1;
  if (!PyArg_ParseTuple(args, "|zp", &name, &constraints)) return nullptr;
  const Operation* op = name ? Engine::Get().Find(name) : nullptr;
  if (name && !op) {
    return Raise(
        Status(StatusCode::kUnknownName,
               {.field = "operation", .wanted = "a known operation", .got = name, .fix = "see `layerzero list`"}));
  }
  return Text(Engine::Get().Kernels(op, constraints != 0));
}

PyObject* FunctionsOf(PyObject*, PyObject* args) {
  const char* kernel_id;
  if (!PyArg_ParseTuple(args, "s", &kernel_id)) return nullptr;
  return Text(Engine::Get().FunctionsOf(kernel_id));
}

PyObject* Coverage(PyObject*, PyObject* args) {
  const char* device;
  if (!PyArg_ParseTuple(args, "s", &device)) return nullptr;
  auto text = Engine::Get().Coverage(device);
  return text.ok() ? Text(*text) : Raise(text.status());
}
PyObject* DescriptorFacts(PyObject*, PyObject*) { return Text(Engine::DescriptorFacts()); }

// find(name) -> the contract's flat name, or None.
PyObject* Find(PyObject*, PyObject* args) {
  const char* name;
  if (!PyArg_ParseTuple(args, "s", &name)) return nullptr;
  const Operation* op = Engine::Get().Find(name);
  if (!op) Py_RETURN_NONE;
  return Text(std::string(op->name()));
}

PyObject* Configure(PyObject*, PyObject* args) {
  const char* json;
  if (!PyArg_ParseTuple(args, "s", &json)) return nullptr;
  return NoneOr(Engine::Get().Configure(json));
}
PyObject* LoadConfig(PyObject*, PyObject* args) {
  const char* path;
  if (!PyArg_ParseTuple(args, "s", &path)) return nullptr;
  return NoneOr(Engine::Get().LoadConfig(path));
}
PyObject* PolicyScope(PyObject*, PyObject* args) {
  long long parent;
  const char* json;
  if (!PyArg_ParseTuple(args, "Ls", &parent, &json)) return nullptr;
  auto scope = Engine::Get().PolicyScope(parent, json);
  return scope.ok() ? PyLong_FromLongLong(*scope) : Raise(scope.status());
}
// all_named(names): every library is registered except those that these entry points will register.
PyObject* AllNamed(PyObject*, PyObject* args) {
  PyObject* names = nullptr;
  if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &names)) return nullptr;
  std::vector<std::string> later;
  for (Py_ssize_t i = 0; i < PyTuple_Size(names); ++i) {
    const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(names, i), nullptr);
    if (!name) return nullptr;
    later.emplace_back(name);
  }
  Engine::Get().AllNamed(std::move(later));
  Py_RETURN_NONE;
}
PyObject* PolicyText(PyObject*, PyObject* args) {
  long long id = 0;
  if (!PyArg_ParseTuple(args, "|L", &id)) return nullptr;
  auto text = Engine::Get().PolicyText(id);
  return text.ok() ? Text(*text) : Raise(text.status());
}
// open_scopes(delta): number of contexts with a policy scope; at 0 the fast path does not look for one.
PyObject* OpenScopes(PyObject*, PyObject* args) {
  long long delta;
  if (!PyArg_ParseTuple(args, "L", &delta)) return nullptr;
  g_open_scopes += delta;
  return PyLong_FromLongLong(g_open_scopes);
}
PyObject* RegisterBackend(PyObject*, PyObject* args) {
  const char *descriptor, *availability;
  if (!PyArg_ParseTuple(args, "ss", &descriptor, &availability)) return nullptr;
  return NoneOr(Engine::Get().RegisterBackend(descriptor, availability));
}
PyObject* ProveBackend(PyObject*, PyObject* args) {
  const char* name;
  if (!PyArg_ParseTuple(args, "s", &name)) return nullptr;
  return Text(Engine::Get().ProveBackend(name));
}
PyObject* Unregister(PyObject*, PyObject* args) {
  const char* adapter;
  if (!PyArg_ParseTuple(args, "s", &adapter)) return nullptr;
  return PyLong_FromSize_t(Engine::Get().Unregister(adapter));
}
PyObject* LoadPlugin(PyObject*, PyObject* args) {
  const char *library, *descriptor;
  if (!PyArg_ParseTuple(args, "ss", &library, &descriptor)) return nullptr;
  return NoneOr(Engine::Get().LoadPlugin(library, descriptor));
}
// records(json, what) -> the same records as the engine writes them; raises their errors.
PyObject* Records(PyObject*, PyObject* args) {
  const char *text, *what;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "s#s", &text, &size, &what)) return nullptr;
  auto records = perfdb::ReadRecords({text, size_t(size)}, what);
  return records.ok() ? Text(perfdb::WriteRecords(*records)) : Raise(records.status());
}
// use_prior(json, what): only these measured records decide from now on; use_prior(): the machine's own again.
PyObject* UsePrior(PyObject*, PyObject* args) {
  const char *text = nullptr, *what = "records";
  Py_ssize_t size = 0;
  if (!PyArg_ParseTuple(args, "|s#s", &text, &size, &what)) return nullptr;
  return NoneOr(text ? Engine::Get().UsePrior({text, size_t(size)}, what) : Engine::Get().UsePriorOfMachine());
}
// perfdb(command, json) -> JSON; other threads run meanwhile, since it may wait for a disk.
PyObject* Perfdb(PyObject*, PyObject* args) {
  const char *command, *text;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "ss#", &command, &text, &size)) return nullptr;
  PyThreadState* const saved = PyEval_SaveThread();
  auto answer = Engine::Get().Perfdb(command, {text, size_t(size)});
  PyEval_RestoreThread(saved);
  return answer.ok() ? Text(*answer) : Raise(answer.status());
}
// table(command, json) -> bytes; the engine's text or, for "build", the table's binary form.
PyObject* Table(PyObject*, PyObject* args) {
  const char *command, *text;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "ss#", &command, &text, &size)) return nullptr;
  PyThreadState* const saved = PyEval_SaveThread();
  auto answer = Engine::Get().Table(command, {text, size_t(size)});
  PyEval_RestoreThread(saved);
  return answer.ok() ? PyBytes_FromStringAndSize(answer->data(), Py_ssize_t(answer->size())) : Raise(answer.status());
}
PyObject* DeviceId(PyObject*, PyObject* args) {
  const char* device;
  if (!PyArg_ParseTuple(args, "s", &device)) return nullptr;
  return Text(Engine::Get().DeviceId(device));
}
PyObject* MeasuredCalls(PyObject*, PyObject*) { return Text(Engine::Get().MeasuredCalls()); }
PyObject* Invalidate(PyObject*, PyObject*) {
  Engine::Get().Invalidate();
  Py_RETURN_NONE;
}

// philox(seed, offset, rows, first slot, slots): the random numbers of the sampling operations as doubles, grouped
// by row.
PyObject* Philox(PyObject*, PyObject* args) {
  long long seed, offset, rows, first, slots;
  if (!PyArg_ParseTuple(args, "LLLLL", &seed, &offset, &rows, &first, &slots)) return nullptr;
  PyObject* memory = PyByteArray_FromStringAndSize(nullptr, Py_ssize_t(rows * slots * int64_t(sizeof(double))));
  if (!memory) return nullptr;
  char* next = PyByteArray_AsString(memory);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t slot = first; slot < first + slots; ++slot, next += sizeof(double)) {
      const double u = PhiloxUniform(seed, offset, row, uint32_t(slot));
      std::memcpy(next, &u, sizeof(u));
    }
  }
  return memory;
}

// set_hooks(raise, slow, resolve, scope_of_context, selected, failed, guessed, draw, prove, begin, free); None leaves
// one unset.
PyObject* SetHooks(PyObject*, PyObject* args) {
  PyObject** slots[] = {&g_hooks.raise,    &g_hooks.slow,   &g_hooks.resolve, &g_hooks.scope_of_context,
                        &g_hooks.selected, &g_hooks.failed, &g_hooks.guessed, &g_hooks.draw,
                        &g_hooks.prove,    &g_hooks.begin,  &g_hooks.free};
  PyObject* hooks[std::size(slots)];
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOO", hooks, hooks + 1, hooks + 2, hooks + 3, hooks + 4, hooks + 5, hooks + 6,
                        hooks + 7, hooks + 8, hooks + 9, hooks + 10)) {
    return nullptr;
  }
  for (size_t i = 0; i < std::size(slots); ++i) {
    Py_XDECREF(*slots[i]);
    *slots[i] = hooks[i] == Py_None ? nullptr : hooks[i];
    Py_XINCREF(*slots[i]);
  }
  Py_RETURN_NONE;
}

PyMethodDef kMethods[] = {
    {"attach", Attach, METH_VARARGS, "attach(torch, states): enables the fast path for torch tensors."},
    {"dispatch_key_state", DispatchKeyState, METH_NOARGS, "The calling thread's dispatch keys, or None."},
    {"philox", Philox, METH_VARARGS, "philox(seed, offset, rows, first slot, slots) -> doubles in a bytearray"},
    {"set_hooks", SetHooks, METH_VARARGS,
     "set_hooks(raise, slow, resolve, scope_of_context, selected, failed, guessed, draw, prove, begin, free)"},
    {"prepare", Prepare, METH_VARARGS,
     "prepare(operation, args, kwargs, fixed=None): a callable of the tensors alone."},
    {"explain", Explain, METH_VARARGS,
     "explain(operation, args, kwargs, device=None, of_chosen=False, capturing=False): JSON."},
    {"which", Which, METH_VARARGS, "which(operation, args, kwargs): (kernel id, plan id)."},
    {"check", Check, METH_VARARGS,
     "check(operation, args, kwargs): raises the error of an invalid call; returns its layout, or None."},
    {"call_differentiable", CallDifferentiable, METH_VARARGS, "call_differentiable(operation, args, kwargs)"},
    {"contracts", Contracts, METH_NOARGS, "All contracts as JSON."},
    {"kernels", Kernels, METH_VARARGS, "kernels(operation=None, constraints=True): JSON."},
    {"functions_of", FunctionsOf, METH_VARARGS,
     "functions_of(kernel_id): JSON, flat names of the operations that it serves."},
    {"devices", Devices, METH_NOARGS, "Real and simulated devices as JSON."},
    {"selections", SelectionsOf, METH_NOARGS, "[(operation, kernel id, how often it was selected)]."},
    {"observe", Observe, METH_VARARGS, "observe(callback, waits, on_callers_thread=False): a handle; see lz.observe."},
    {"observe_selections", ObserveSelections, METH_VARARGS,
     "observe_selections(callback, logged_only=False): a handle."},
    {"observe_by_nvtx", ObserveByNvtx, METH_NOARGS, "observe_by_nvtx(): a handle, or None without NVTX."},
    {"exports", Exports, METH_NOARGS, "exports(): what the policy exports, or None."},
    {"stop_observing", StopObserving, METH_VARARGS, "stop_observing(handle)"},
    {"coverage", Coverage, METH_VARARGS, "coverage(device): operations, dtypes and their kernels as JSON."},
    {"descriptor_facts", DescriptorFacts, METH_NOARGS, "Every fact of a descriptor's kernel as JSON."},
    {"stats", Stats, METH_NOARGS, "Counters as JSON."},
    {"reason_codes", ReasonCodes, METH_NOARGS, "Codes, causes and fixes as JSON."},
    {"find", Find, METH_VARARGS, "The flat name of an operation, or None."},
    {"startup", Startup, METH_NOARGS, "Raises the mistakes found at start-up."},
    {"build_id", BuildId, METH_NOARGS, "(version, build id)"},
    {"configure", Configure, METH_VARARGS, "configure(json)"},
    {"load_config", LoadConfig, METH_VARARGS, "load_config(path)"},
    {"policy_scope", PolicyScope, METH_VARARGS, "policy_scope(parent, json): id"},
    {"all_named", AllNamed, METH_VARARGS, "all_named(names of libraries that are still to come)"},
    {"policy_text", PolicyText, METH_VARARGS, "policy_text(scope=0): JSON"},
    {"open_scopes", OpenScopes, METH_VARARGS, "open_scopes(delta): the number of open scopes"},
    {"register_backend", RegisterBackend, METH_VARARGS, "register_backend(descriptor json, availability json)"},
    {"prove_backend", ProveBackend, METH_VARARGS, "prove_backend(name): why it cannot be used; empty: it can."},
    {"unregister", Unregister, METH_VARARGS, "unregister(adapter): the number of kernels it had."},
    {"load_plugin", LoadPlugin, METH_VARARGS, "load_plugin(library, descriptor)"},
    {"use_prior", UsePrior, METH_VARARGS, "use_prior(json, what): measured records that decide; (): the machine's."},
    {"perfdb", Perfdb, METH_VARARGS, "perfdb(command, json): a command of the performance database."},
    {"table", Table, METH_VARARGS, "table(command, json): a command about dispatch tables; bytes."},
    {"device_id", DeviceId, METH_VARARGS, "device_id(name): the device as measured records name it."},
    {"measured_calls", MeasuredCalls, METH_NOARGS, "The measured calls in force as JSON."},
    {"records", Records, METH_VARARGS, "records(json, what): the same measured records, checked."},
    {"end", End, METH_NOARGS, "end(): whether the process's end waits for first calls of other threads."},
    {"forget_resolved", ForgetResolved, METH_NOARGS, "forget_resolved(): Python kernels are resolved again."},
    {"invalidate", Invalidate, METH_NOARGS, "Makes every cached plan stale."},
    {"verify_case", VerifyCase, METH_VARARGS, "verify_case(operation, line): a conformance case's arguments."},
    {"verify_random", VerifyRandom, METH_VARARGS, "verify_random(operation, seed, broken=False): a random case."},
    {"read_stream", ReadStream, METH_VARARGS, "read_stream(address, bytes): the sum of the words, by all threads."},
    {"copy_stream", CopyStream, METH_VARARGS, "copy_stream(from, to, bytes): copies whole words, by all threads."},
    {"multiply_adds", MultiplyAdds, METH_VARARGS, "multiply_adds(rounds): the number done, in registers."},
    {"multiply_weights", MultiplyWeights, METH_VARARGS,
     "multiply_weights(stored, multiplied, rounds): the number of weights, from the L1 cache."},
    {"usable_cpus", UsableProcessors, METH_NOARGS, "Processors that this process may keep busy."},
    {"fork_join", ForkJoin, METH_VARARGS,
     "fork_join(loops, team=False): (threads, seconds of a loop in which all meet)."},
    {"verify_compare", VerifyCompare, METH_VARARGS,
     "verify_compare(operation, line, outputs + written, numerics=''): reports."},
    {nullptr, nullptr, 0, nullptr}};

// The callables are attributes of `ops`, a dict from flat name.
int Exec(PyObject* module) {
  // The engine, its threads and torch's tensors belong to the process: only one interpreter may use them.
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError,
                    "layerzero: wanted the main interpreter, got a subinterpreter; use threads or processes");
    return -1;
  }
  NoteFoundLibraries();
  PyObject* ops = PyDict_New();
  if (!ops) return -1;
  for (const auto& op : Engine::Get().operations()) {
    PyObject* callable = MakeCallable(*op, module);
    if (!callable || PyDict_SetItemString(ops, op->name().data(), callable) != 0) return -1;
    Py_DecRef(callable);
  }
  for (PyMethodDef* methods : {kKvMethods, kProgramMethods, kGuardMethods, kHealthMethods, kTrustMethods,
                               kTokenizerMethods, kTokenCacheMethods, kWorkerMethods, kJitMethods, kTimingMethods}) {
    if (PyModule_AddFunctions(module, methods) != 0) return -1;
  }
  CountFirstCallsInChildren();
  Engine::Get().SetHost(PythonRuntime());
  const int failed = PyModule_AddObjectRef(module, "ops", ops);
  Py_DecRef(ops);
  return failed;
}

PyModuleDef_Slot kSlots[] = {{Py_mod_exec, reinterpret_cast<void*>(&Exec)}, {0, nullptr}};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "_layerzero",
                       "LayerZero's CPython binding.",
                       0,
                       kMethods,
                       kSlots,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace
}  // namespace lz::python

// NOLINTNEXTLINE(bugprone-reserved-identifier): the name is Python's
PyMODINIT_FUNC PyInit__layerzero() { return PyModuleDef_Init(&lz::python::kModule); }
