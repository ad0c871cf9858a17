// Prepared calls: everything but the tensors is fixed once.
#include <algorithm>
#include <cstddef>
#include <memory>

#include "explain.h"
#include "random.h"
#include "timing.h"
#include "torch_bridge.h"

// After Python.h.
#include <structmember.h>

namespace lz::python {
namespace {

// Scalars, layout, kernel and policy are fixed, tensors are given at each call.
struct Prepared {
  OpBinding* binding;
  PyObject* fixed = nullptr;  // a dict: what is fixed as the caller gave it; only where calls may need a view
  bool folds = false;         // every call needs one
  std::vector<lz_scalar> scalars;
  int32_t layout = 0;
  int64_t policy = 0;
  bool draws = false;  // no seed was fixed: each call draws
  InlineCache site;
  const KernelEntry* kernel = nullptr;  // that prepare chose, and why, as JSON
  std::string explanation;

  Prepared(OpBinding* of, int64_t scope, bool drawn) : binding(of), policy(scope), draws(drawn) {}
  ~Prepared() {
    StopIfUnwound();
    Py_XDECREF(fixed);
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
};

using Vectorcall = PyObject* (*)(PyObject*, PyObject* const*, size_t, PyObject*);
struct PreparedObject {
  PyObject_HEAD Vectorcall call;
  Prepared* prepared;
};
Prepared& Of(PyObject* self) { return *reinterpret_cast<PreparedObject*>(self)->prepared; }

// Python views the tensors, calls CallOnAxes with the views, and views the results.
PyObject* CallViewed(PyObject* self, PyObject* const* args, Py_ssize_t num_args) {
  PyObject* module = PyImport_ImportModule("layerzero.contracts.axes");
  PyObject* tensors = module ? PyTuple_New(num_args) : nullptr;
  for (Py_ssize_t i = 0; tensors && i < num_args; ++i) PyTuple_SetItem(tensors, i, Py_NewRef(args[i]));
  PyObject* result =
      tensors ? PyObject_CallMethod(module, "call_prepared", "OOO", self, Of(self).fixed, tensors) : nullptr;
  Py_XDECREF(tensors);
  Py_XDECREF(module);
  return result;
}

PyObject* RefusePrepared(const OpBinding& binding, std::string wanted, std::string got, std::string fix) {
  return Raise(Status(StatusCode::kWrongType, {.field = std::string("a prepared ") + binding.method.ml_name,
                                               .wanted = std::move(wanted),
                                               .got = std::move(got),
                                               .fix = std::move(fix)}));
}

PyObject* CallPrepared(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords,
                       bool on_axes = false) {
  Prepared* prepared = &Of(self);
  OpBinding& binding = *prepared->binding;
  const Operation& op = *binding.op;
  if (keywords && PyTuple_Size(keywords) > 0) {
    return RefusePrepared(binding, "its tensors by position", "arguments by name",
                          "everything else was fixed by prepare");
  }
  if (size_t(num_args) > op.num_inputs()) {
    return RefusePrepared(binding, "at most its " + std::to_string(op.num_inputs()) + " tensors",
                          std::to_string(num_args) + " arguments", "everything else was fixed by prepare");
  }
  Arguments a;
  for (Py_ssize_t i = 0; i < num_args; ++i) a.params[op.input_params()[size_t(i)]] = args[i];
  Request r(op);
  if (ReadTensors(binding, a, &r) != Read::kOk) {
    return RefusePrepared(binding, "plain tensors that need no gradient, outside torch's modes", "other arguments",
                          std::string("call layerzero.") + binding.method.ml_name + " instead");
  }
  if (prepared->fixed && !on_axes && (prepared->folds || NeedsView(binding, a, r)))
    return CallViewed(self, args, num_args);
  Drawn drawn;
  if (prepared->draws && NeedsDraw(binding, a) && !drawn.Into(binding, &a, &r)) return nullptr;
  std::copy(prepared->scalars.begin(), prepared->scalars.end(), r.scalars.begin());
  r.layout = prepared->layout;
  if (!ReadContext(&r)) return nullptr;
  if (prepared->policy != 0) r.policy = prepared->policy;
  PyObject* tensors[kMaxTensors];
  for (size_t i = 0; i < op.num_inputs(); ++i) tensors[i] = a.params[op.input_params()[i]];
  return RunFromPython(r, &prepared->site, tensors, nullptr);
}

PyObject* CallVector(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  return CallPrepared(self, args, Py_ssize_t(flags & ~(size_t{1} << (8 * sizeof(size_t) - 1))), keywords);
}
PyObject* CallTuple(PyObject* self, PyObject* args, PyObject* named) {
  std::vector<PyObject*> all;
  for (Py_ssize_t i = 0; i < PyTuple_Size(args); ++i) all.push_back(PyTuple_GetItem(args, i));
  if (!named || PyDict_Size(named) == 0) return CallPrepared(self, all.data(), PyTuple_Size(args), nullptr);
  PyObject* keys = PyDict_Keys(named);
  PyObject* names = keys ? PyList_AsTuple(keys) : nullptr;
  PyObject* result = names ? CallPrepared(self, all.data(), PyTuple_Size(args), names) : nullptr;
  Py_XDECREF(keys);
  Py_XDECREF(names);
  return result;
}

// _call_on_axes(*tensors): a call whose tensors have the contract's axes, or are refused.
PyObject* CallOnAxes(PyObject* self, PyObject* args) {
  std::vector<PyObject*> all;
  for (Py_ssize_t i = 0; i < PyTuple_Size(args); ++i) all.push_back(PyTuple_GetItem(args, i));
  return CallPrepared(self, all.data(), PyTuple_Size(args), nullptr, true);
}

const std::string& KernelId(const Prepared& p) { return (p.site.plan ? p.site.plan->kernel : p.kernel)->id; }
PyObject* GetKernelId(PyObject* self, void*) { return PyUnicode_FromString(KernelId(Of(self)).c_str()); }
PyObject* GetOperation(PyObject* self, void*) { return PyUnicode_FromString(Of(self).binding->method.ml_name); }
PyObject* Repr(PyObject* self) {
  return PyUnicode_FromFormat("<layerzero.prepare(\"%s\"): %s>", Of(self).binding->method.ml_name,
                              KernelId(Of(self)).c_str());
}
PyObject* ExplainPrepared(PyObject* self, PyObject*) {
  PyObject* module = PyImport_ImportModule("layerzero.inspection");
  PyObject* report = module ? PyObject_CallMethod(module, "report_of", "s", Of(self).explanation.c_str()) : nullptr;
  Py_XDECREF(module);
  return report;
}
void Free(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<PreparedObject*>(self)->prepared;
  auto* release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(self);
  Py_DecRef(reinterpret_cast<PyObject*>(type));
}

// A type with vectorcall: the limited API of 3.10 has no names for its flag and member, and every CPython since 3.9
// honours both.
PyTypeObject* PreparedType() {
  constexpr unsigned long kHaveVectorcall = 1UL << 11;
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(PreparedObject, call), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef properties[] = {{"kernel_id", &GetKernelId, nullptr, "The kernel that it runs.", nullptr},
                                     {"operation", &GetOperation, nullptr, "The operation's flat name.", nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyMethodDef methods[] = {
      {"explain", &ExplainPrepared, METH_NOARGS, "Why prepare chose its kernel: a SelectionReport."},
      {"_call_on_axes", &CallOnAxes, METH_VARARGS, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static const char kDoc[] = "A prepared call: takes the operation's tensors by position.";
  static PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>(kDoc)},
                                {Py_tp_members, members},
                                {Py_tp_getset, properties},
                                {Py_tp_methods, methods},
                                {Py_tp_repr, reinterpret_cast<void*>(&Repr)},
                                {Py_tp_call, reinterpret_cast<void*>(&CallTuple)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(&Free)},
                                {0, nullptr}};
  static PyType_Spec spec = {"layerzero.Prepared", sizeof(PreparedObject), 0,
                             unsigned(Py_TPFLAGS_DEFAULT | kHaveVectorcall), slots};
  static PyObject* const type = PyType_FromSpec(&spec);
  return reinterpret_cast<PyTypeObject*>(type);
}

// Keeps what is fixed, with the layout that was found.
bool Fix(Prepared* prepared, PyObject* fixed) {
  prepared->fixed = PyDict_Copy(fixed);
  if (!prepared->fixed) return false;
  const Operation& op = *prepared->binding->op;
  if (op.fold_scalar() >= 0) {
    const uint8_t at = op.scalar_params()[size_t(op.fold_scalar())];
    prepared->folds = AreSeveralAxes(PyDict_GetItemWithError(fixed, prepared->binding->names[at]));
  }
  const std::vector<PyObject*>& layouts = prepared->binding->layouts;
  return !PyErr_Occurred() &&
         (layouts.empty() || PyDict_SetItemString(prepared->fixed, "layout", layouts[size_t(prepared->layout)]) == 0);
}

}  // namespace

bool IsPrepared(PyObject* object) {
  PyTypeObject* const type = PreparedType();
  return type && Py_TYPE(object) == type;
}
PyObject* RunPrepared(PyObject* prepared, PyObject* const* tensors, Py_ssize_t count) {
  return CallPrepared(prepared, tensors, count, nullptr);
}

PyObject* Prepare(PyObject*, PyObject* args) {
  PyObject *callable, *positional, *named, *fixed = Py_None;
  if (!PyArg_ParseTuple(args, "OO!O!|O", &callable, &PyTuple_Type, &positional, &PyDict_Type, &named, &fixed)) {
    return nullptr;
  }
  ExplainRequest q;
  PyObject* request = PyTuple_Pack(3, callable, positional, named);
  const bool read = request && ReadExplainRequest(request, &q);
  Py_XDECREF(request);
  if (!read) return nullptr;
  Request& r = *q.request;
  if (q.arguments.generator && q.arguments.generator != Py_None) {
    return Raise(Status(StatusCode::kInvalidRequest, {.field = std::string(r.op->name()) + ": generator",
                                                      .wanted = "none in a prepared call",
                                                      .got = "one",
                                                      .fix = "pass seed= here or uniform to each call"}));
  }
  auto prepared = std::make_unique<Prepared>(q.binding, r.policy, NeedsDraw(*q.binding, q.arguments));
  prepared->scalars.assign(r.scalars.begin(), r.scalars.begin() + ptrdiff_t(r.op->num_scalars()));
  if (Status status = Engine::Get().Bind(r); !status.ok()) return Raise(status, &r);
  if (!WarnIfLayoutGuessed(r)) return nullptr;
  prepared->layout = r.layout;
  if (fixed != Py_None && !Fix(prepared.get(), fixed)) return nullptr;
  auto plan = SelectWithoutGil(r, &prepared->site);
  if (!plan.ok()) return Raise(plan.status(), &r);
  prepared->kernel = (*plan)->kernel;
  auto explanation = Engine::Get().Explain(r);
  if (!explanation.ok()) return Raise(explanation.status(), &r);
  prepared->explanation = std::move(*explanation);
  PyTypeObject* type = PreparedType();
  if (!type) return nullptr;
  auto* allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* object = allocate(type, 0);
  if (!object) return nullptr;
  reinterpret_cast<PreparedObject*>(object)->call = &CallVector;
  reinterpret_cast<PreparedObject*>(object)->prepared = prepared.release();
  return object;
}

}  // namespace lz::python
