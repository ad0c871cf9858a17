#include "arguments.h"

#include <algorithm>
#include <cstring>

#include "torch_bridge.h"

namespace lz::python {
namespace {

PyObject* Interned(const char* text) { return PyUnicode_InternFromString(text); }

bool SameName(PyObject* a, PyObject* b) { return a == b || PyUnicode_Compare(a, b) == 0; }

PyObject** Slot(const OpBinding& binding, PyObject* name, Arguments* a) {
  static PyObject* const kLayout = Interned("layout");
  static PyObject* const kKernel = Interned("kernel");
  static PyObject* const kOut = Interned("out");
  static PyObject* const kGenerator = Interned("generator");
  for (size_t i = 0; i < binding.names.size(); ++i) {
    if (binding.names[i] == name) return &a->params[i];
  }
  for (size_t i = 0; i < binding.names.size(); ++i) {
    if (SameName(binding.names[i], name)) return &a->params[i];
  }
  if (!binding.layouts.empty() && SameName(name, kLayout)) return &a->layout;
  if (SameName(name, kKernel)) return &a->kernel;
  if (SameName(name, kOut)) return &a->out;
  if (binding.draws && SameName(name, kGenerator)) return &a->generator;
  return nullptr;
}

// torch spells normalized_shape as a tuple; a tuple of one integer is that integer.
PyObject* OnlyItem(PyObject* value) {
  if (PyTuple_Check(value) && PyTuple_Size(value) == 1) return PyTuple_GetItem(value, 0);
  if (PyList_Check(value) && PyList_Size(value) == 1) return PyList_GetItem(value, 0);
  return value;
}

bool WrongType(const OpBinding& binding, std::string_view param, const char* wanted, const char* got) {
  Raise(Status(StatusCode::kWrongType,
               {.field = std::string(binding.op->name()) + ": " + std::string(param), .wanted = wanted, .got = got}));
  return false;
}
bool WrongType(const OpBinding& binding, std::string_view param, const char* wanted, PyObject* got) {
  PyObject* type = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(got)), "__name__");
  const char* name = type ? PyUnicode_AsUTF8AndSize(type, nullptr) : nullptr;
  WrongType(binding, param, wanted, name ? name : "another type");
  Py_XDECREF(type);
  return false;
}

bool ReadChoice(const OpBinding& binding, const Param& p, PyObject* value, lz_scalar* out) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &length) : nullptr;
  if (!text) PyErr_Clear();  // a text with surrogates
  if (!text) return WrongType(binding, p.name, "one of the strings that its page lists", value);
  const std::string_view wanted(text, size_t(length));
  if (const int64_t index = ChoiceIndex(p.choices, wanted); index >= 0) {
    out->value.i = index;
    out->given = 1;
    return true;
  }
  Raise(Status(StatusCode::kInvalidRequest, {.field = std::string(binding.op->name()) + ": " + std::string(p.name),
                                             .wanted = "one of " + std::string(p.choices),
                                             .got = "'" + std::string(wanted) + "'"}));
  return false;
}

bool ReadLayout(OpBinding& binding, PyObject* value, Request* r) {
  if (!value || value == Py_None) {
    if (!binding.layouts.empty()) r->layout = kDetectLayout;
    return true;
  }
  for (size_t i = 0; i < binding.layouts.size(); ++i) {
    if (value == binding.layouts[i] || (PyUnicode_Check(value) && SameName(value, binding.layouts[i]))) {
      r->layout = int32_t(i);
      return true;
    }
  }
  std::string wanted;
  for (const std::string& name : binding.op->layout_names()) wanted += (wanted.empty() ? "" : " or ") + name;
  const char* got = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, nullptr) : "no string";
  if (!got) PyErr_Clear();
  Raise(Status(
      StatusCode::kInvalidRequest,
      {.field = std::string(binding.op->name()) + ": layout", .wanted = wanted, .got = got ? got : "no string"}));
  return false;
}

// kernel= is a lock on every operation of the contract, for this call only.
bool ReadKernel(OpBinding& binding, PyObject* value, Request* r) {
  if (!value || value == Py_None) return true;
  if (!PyUnicode_Check(value)) return WrongType(binding, "kernel", "a kernel id as a string", value);
  for (const auto& [name, scope] : binding.kernel_scopes) {
    if (r->policy == 0 && SameName(value, name)) {
      r->policy = scope;
      return true;
    }
  }
  const char* id = PyUnicode_AsUTF8AndSize(value, nullptr);
  if (!id) PyErr_Clear();
  if (!id) return WrongType(binding, "kernel", "a kernel id as a string", value);
  auto scope = Engine::Get().KernelScope(r->policy, *binding.op, id);
  if (!scope.ok()) {
    Raise(scope.status());
    return false;
  }
  if (r->policy == 0 && binding.kernel_scopes.size() < 64) {
    Py_IncRef(value);
    binding.kernel_scopes.emplace_back(value, *scope);
  }
  r->policy = *scope;
  return true;
}

}  // namespace

namespace {

// The message is made in Python: layerzero.contracts.arguments. Steals `argument`. Returns false with an error set.
bool RefuseCall(const OpBinding& binding, const char* function, PyObject* argument) {
  PyObject* module = PyImport_ImportModule("layerzero.contracts.arguments");
  PyObject* result = module ? PyObject_CallMethod(module, function, "sO", binding.method.ml_name, argument) : nullptr;
  Py_XDECREF(module);
  Py_XDECREF(result);
  Py_XDECREF(argument);
  return false;
}

}  // namespace

bool ParseArguments(const OpBinding& binding, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords,
                    Arguments* a) {
  if (size_t(num_args) > binding.num_positional) {
    return RefuseCall(binding, "refuse_positional", PyLong_FromSsize_t(num_args));
  }
  for (Py_ssize_t i = 0; i < num_args; ++i) a->params[i] = args[i];
  const Py_ssize_t num_keywords = keywords ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t k = 0; k < num_keywords; ++k) {
    PyObject* name = PyTuple_GetItem(keywords, k);
    PyObject** slot = Slot(binding, name, a);
    if (!slot || *slot) {
      return RefuseCall(binding, slot ? "refuse_twice" : "refuse_keyword", Py_NewRef(name));
    }
    *slot = args[num_args + k];
  }
  return true;
}

Read ReadTensors(const OpBinding& binding, const Arguments& a, Request* r) {
  const Operation& op = *binding.op;
  const bool any = std::any_of(op.input_params().begin(), op.input_params().end(),
                               [&](uint8_t i) { return a.params[i] && a.params[i] != Py_None; });
  if (a.generator && a.generator != Py_None) return Read::kSlow;
  if (!any) return Read::kOk;  // the contract reports what is missing
  if (!TorchAttached() || !ModesAllowFastPath()) return Read::kSlow;
  const bool grad = GradEnabled();
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    PyObject* object = a.params[op.input_params()[i]];
    if (!object || object == Py_None) continue;
    if (!IsTensor(object) || (grad && RequiresGrad(object)) || !ReadTensor(object, &r->tensors[i])) return Read::kSlow;
  }
  return Read::kOk;
}

namespace {

bool ReadSizes(PyObject* sizes, int64_t* into, int32_t* ndim) {
  *ndim = int32_t(PyTuple_Size(sizes));
  for (int32_t d = 0; d < *ndim; ++d) into[d] = PyLong_AsLongLong(PyTuple_GetItem(sizes, d));
  return !PyErr_Occurred();
}

Read ReadDescription(const OpBinding& binding, const Param& p, PyObject* description, int64_t* memory, lz_tensor* t) {
  const char* name;
  PyObject *sizes, *strides;
  int32_t num_strides = 0;
  t->shape = memory;
  t->strides = memory + kMaxRank;
  const bool parsed = PyArg_ParseTuple(description, "sO!O!", &name, &PyTuple_Type, &sizes, &PyTuple_Type, &strides);
  if (parsed && PyTuple_Size(sizes) > kMaxRank) {
    Raise(Status(
        StatusCode::kInvalidRequest,
        {.field = std::string(p.name), .wanted = "at most " + std::to_string(kMaxRank) + " axes", .got = "more"}));
    return Read::kError;
  }
  if (!parsed || PyTuple_Size(strides) != PyTuple_Size(sizes) || !ReadSizes(sizes, t->shape, &t->ndim) ||
      !ReadSizes(strides, t->strides, &num_strides)) {
    PyErr_Clear();
    WrongType(binding, p.name, "a tensor", description);
    return Read::kError;
  }
  const DTypeInfo& dtype = Info(DTypeFromName(name));
  t->dtype = {dtype.dlpack_code, dtype.bits, dtype.lanes};
  t->device = {1, 0};
  return Read::kOk;
}

}  // namespace

Read ReadTensorsOrDescriptions(const OpBinding& binding, const Arguments& a, Request* r, Descriptions* descriptions) {
  const Operation& op = *binding.op;
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    PyObject* object = a.params[op.input_params()[i]];
    if (!object || object == Py_None) continue;
    if (PyTuple_Check(object)) {
      const Read read = ReadDescription(binding, op.input(i), object, descriptions->sizes[i], &r->tensors[i]);
      if (read != Read::kOk) return read;
      continue;
    }
    const char* const wanted = "a dense torch.Tensor with values, outside torch's modes and transforms";
    if (!TorchAttached() || !IsTensor(object)) {
      WrongType(binding, op.input(i).name, wanted, object);
      return Read::kError;
    }
    if (!ModesAllowFastPath()) {
      WrongType(binding, op.input(i).name, wanted, "a mode or transform of torch in force");
      return Read::kError;
    }
    if (GradEnabled() && RequiresGrad(object)) r->flags |= LZ_FLAG_REQUIRES_GRAD;
    if (!ReadTensor(object, &r->tensors[i])) {
      WrongType(binding, op.input(i).name, wanted, "a tensor without dense values in memory");
      return Read::kError;
    }
  }
  return Read::kOk;
}

bool AreSeveralAxes(PyObject* sizes) {
  return sizes &&
         ((PyTuple_Check(sizes) && PyTuple_Size(sizes) != 1) || (PyList_Check(sizes) && PyList_Size(sizes) != 1));
}

bool NeedsView(const OpBinding& binding, const Arguments& a, const Request& r) {
  const Operation& op = *binding.op;
  if (op.fold_scalar() >= 0 && AreSeveralAxes(a.params[op.scalar_params()[size_t(op.fold_scalar())]])) return true;
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const Param& p = op.input(i);
    const int32_t ndim = r.tensors[i].ndim;
    if (p.batched_rank > 0 && p.shape != "*" && ndim >= p.batched_rank - 2 && ndim != p.batched_rank) return true;
  }
  return false;
}

bool ReadScalar(const OpBinding& binding, const Param& p, PyObject* value, lz_scalar* out) {
  // True and False are ints in Python; here they are a mistake.
  const auto is_flag = [](PyObject* one) { return one == Py_True || one == Py_False; };
  switch (p.kind) {
    case ParamKind::kFloat:
      if (is_flag(value)) return WrongType(binding, p.name, "a number", value);
      out->value.f = PyFloat_AsDouble(value);
      if (out->value.f == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return WrongType(binding, p.name, "a number", value);
      }
      break;
    case ParamKind::kInt:
      value = OnlyItem(value);
      if (is_flag(value)) return WrongType(binding, p.name, "an integer", value);
      out->value.i = PyLong_AsLongLong(value);
      if (out->value.i == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return WrongType(binding, p.name, "an integer", value);
      }
      break;
    case ParamKind::kBool: {
      if (!is_flag(value)) return WrongType(binding, p.name, "True or False", value);
      out->value.i = value == Py_True;
      break;
    }
    case ParamKind::kChoice: return ReadChoice(binding, p, value, out);
    case ParamKind::kTensor: return false;
  }
  out->given = 1;
  return true;
}

bool ReadScalars(OpBinding& binding, const Arguments& a, Request* r) {
  const Operation& op = *binding.op;
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    PyObject* value = a.params[op.scalar_params()[i]];
    if (!value || value == Py_None) continue;
    if (!ReadScalar(binding, op.scalar(i), value, &r->scalars[i])) return false;
  }
  return ReadLayout(binding, a.layout, r) && ReadContext(r) && ReadKernel(binding, a.kernel, r);
}

bool ReadPolicy(int64_t* policy) {
  if (g_open_scopes == 0 || !g_hooks.scope_of_context) return true;
  PyObject* scope = PyObject_CallNoArgs(g_hooks.scope_of_context);
  if (!scope) return false;
  *policy = PyLong_AsLongLong(scope);
  Py_DecRef(scope);
  return true;
}

bool ReadContext(Request* r) {
  if (!ReadPolicy(&r->policy)) return false;
  const lz_device device = r->tensors[0].ndim >= 0 ? r->tensors[0].device : lz_device{1, 0};
  if (CurrentStream(device, &r->stream)) return true;
  if (!PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "torch has no current stream for device %d", device.id);
  return false;
}

}  // namespace lz::python
