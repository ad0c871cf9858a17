#include "program.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "program/program.h"
#include "torch_bridge.h"

namespace lz::python {
namespace {

using Kind = ProgramValue::Kind;
constexpr const char* kCapsule = "layerzero.program";
constexpr const char* kKinds[] = {"weight", "input", "rows", "output", "cache"};

struct PythonProgram {
  std::unique_ptr<Program> program;
  PyObject* weights = nullptr;  // a list: what keeps their memory
  bool trains = false;          // a weight wants gradients
  ~PythonProgram() {
    StopIfUnwound();
    Py_XDECREF(weights);
  }
};

bool Wrong(StatusCode code, std::string field, std::string wanted, std::string got, std::string fix = {}) {
  Raise(Status(code, {"program: " + std::move(field), std::move(wanted), std::move(got), std::move(fix)}));
  return false;
}

std::string TextOf(PyObject* object, const char* attribute) {
  PyObject* value = PyObject_GetAttrString(object, attribute);
  PyObject* text = value ? PyObject_Str(value) : nullptr;
  const char* utf8 = text ? PyUnicode_AsUTF8AndSize(text, nullptr) : nullptr;
  std::string copy = utf8 ? utf8 : "?";
  PyErr_Clear();
  Py_XDECREF(text);
  Py_XDECREF(value);
  return copy;
}

bool ToTensor(PyObject* object, const std::string& name, lz_tensor* tensor) {
  tensor->ndim = -1;
  if (object == Py_None) return true;
  constexpr const char* kWanted = "a plain torch.Tensor in the CPU's memory";
  if (!IsTensor(object)) {
    return Wrong(StatusCode::kWrongType, name, kWanted,
                 TextOf(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__"));
  }
  if (ReadTensor(object, tensor) && IsCpu(tensor->device)) return true;
  return Wrong(StatusCode::kWrongType, name, kWanted,
               "one on " + TextOf(object, "device") + " of " + TextOf(object, "layout") + " " + TextOf(object, "dtype"),
               "move it; resolve_neg() and resolve_conj() make views plain");
}

bool ToDType(const char* name, DType* dtype) {
  for (size_t i = 0; i < size_t(DType::kCount); ++i) {
    if (Info(DType(i)).name == name) return *dtype = DType(i), true;
  }
  return Wrong(StatusCode::kInvalidRequest, "value", "the name of a dtype", name);
}

// Programs keep weights as they are now: if the tensor's owner replaces their memory, this memory stays.
bool ToWeight(PyObject* tensor, PythonProgram* program, ProgramValue* value) {
  const std::string name = "weight";
  if (!ToTensor(tensor, name, &value->weight)) return false;
  if (value->weight.ndim < 0) return Wrong(StatusCode::kWrongType, name, "a tensor", "None");
  program->trains |= RequiresGrad(tensor);
  PyObject* kept = PyObject_CallMethod(tensor, "detach", nullptr);
  const bool read = kept && PyList_Append(program->weights, kept) == 0 && ToTensor(kept, name, &value->weight);
  Py_XDECREF(kept);
  if (!read) return false;
  value->shape.assign(value->weight.shape, value->weight.shape + value->weight.ndim);
  value->strides.assign(value->weight.strides, value->weight.strides + value->weight.ndim);
  return true;
}

bool ToValue(PyObject* tuple, PythonProgram* program, ProgramValue* value) {
  const char *kind = nullptr, *dtype = "";
  PyObject* second = Py_None;
  if (!PyArg_ParseTuple(tuple, "s|Os", &kind, &second, &dtype)) return false;
  size_t k = 0;
  while (k < std::size(kKinds) && std::string_view(kKinds[k]) != kind) ++k;
  if (k == std::size(kKinds)) {
    return Wrong(StatusCode::kInvalidRequest, "value", "weight, input, rows, output or cache", kind);
  }
  value->kind = Kind(k);
  if (value->kind == Kind::kInput) return true;
  if (value->kind == Kind::kWeight) return ToWeight(second, program, value);
  value->width = PyLong_AsLongLong(second);
  return !PyErr_Occurred() && ToDType(dtype, &value->dtype);
}

bool ToIndex(PyObject* number, int32_t* index) {
  const long long value = PyLong_AsLongLong(number);
  *index = int32_t(std::clamp<long long>(value, INT32_MIN, INT32_MAX));
  return !PyErr_Occurred();
}

bool ToOperand(PyObject* object, Operand* operand) {
  if (object == Py_None) return true;
  if (PyLong_Check(object)) return ToIndex(object, &operand->value);
  PyObject *value = nullptr, *axes = nullptr;
  long long column = 0, step = 0;
  int past = 0, packed = 0;
  if (!PyArg_ParseTuple(object, "OLO!pLp", &value, &column, &PyTuple_Type, &axes, &past, &step, &packed)) return false;
  operand->column = column;
  operand->step = step;
  operand->past = past != 0;
  operand->packed = packed != 0;
  for (Py_ssize_t i = 0; i < PyTuple_Size(axes); ++i) {
    operand->axes.push_back(PyLong_AsLongLong(PyTuple_GetItem(axes, i)));
    if (PyErr_Occurred()) return false;
  }
  return ToIndex(value, &operand->value);
}

bool ToOperands(PyObject* list, std::vector<Operand>* operands) {
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    if (!ToOperand(PyList_GetItem(list, i), &operands->emplace_back())) return false;
  }
  return !PyErr_Occurred();
}

bool ToStep(PyObject* tuple, ProgramStep* step) {
  PyObject *callable, *inputs, *scalars, *outputs;
  if (!PyArg_ParseTuple(tuple, "OO!O!O!", &callable, &PyList_Type, &inputs, &PyDict_Type, &scalars, &PyList_Type,
                        &outputs)) {
    return false;
  }
  const OpBinding* binding = BindingOf(callable);
  if (!binding) {
    return Wrong(StatusCode::kWrongType, "step", "an operation",
                 TextOf(reinterpret_cast<PyObject*>(Py_TYPE(callable)), "__name__"));
  }
  step->op = binding->op;
  step->scalars.resize(step->op->num_scalars());
  for (size_t i = 0; i < step->scalars.size(); ++i) {
    const Param& param = step->op->scalar(i);
    PyObject* given = PyDict_GetItemString(scalars, std::string(param.name).c_str());
    if (given && !ReadScalar(*binding, param, given, &step->scalars[i])) return false;
  }
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(scalars, &at, &name, &value);) {
    const char* utf8 = PyUnicode_AsUTF8AndSize(name, nullptr);
    if (!utf8) return false;
    size_t i = 0;
    while (i < step->op->num_scalars() && step->op->scalar(i).name != utf8) ++i;
    if (i < step->op->num_scalars()) continue;
    return Wrong(StatusCode::kInvalidRequest, std::string(step->op->name()), "arguments of the operation, first layout",
                 utf8);
  }
  return ToOperands(inputs, &step->inputs) && ToOperands(outputs, &step->outputs);
}

PyObject* Make(PyObject*, PyObject* args) {
  PyObject *value_list, *step_list;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &value_list, &PyList_Type, &step_list)) return nullptr;
  auto program = std::make_unique<PythonProgram>();
  program->weights = PyList_New(0);
  if (!program->weights) return nullptr;
  std::vector<ProgramValue> values(size_t(PyList_Size(value_list)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!ToValue(PyList_GetItem(value_list, Py_ssize_t(i)), program.get(), &values[i])) return nullptr;
  }
  std::vector<ProgramStep> steps(size_t(PyList_Size(step_list)));
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!ToStep(PyList_GetItem(step_list, Py_ssize_t(i)), &steps[i])) return nullptr;
  }
  auto made = Program::Make(Engine::Get(), std::move(values), std::move(steps));
  if (!made.ok()) return Raise(made.status());
  program->program = std::move(*made);
  return PyCapsule_New(program.release(), kCapsule, [](PyObject* capsule) {
    delete static_cast<PythonProgram*>(PyCapsule_GetPointer(capsule, kCapsule));
  });
}

// The tuple that Python passes keeps the arguments of a run alive; any thread may hold and release it.
const RunOwner kArguments = {
    [](void* tuple) {
      const Gil gil;
      Py_IncRef(static_cast<PyObject*>(tuple));
    },
    [](void* tuple) {
      const Gil gil;
      Py_DecRef(static_cast<PyObject*>(tuple));
    },
};

// The tensors of one run, as passed from Python.
struct Tensors {
  Program* program = nullptr;
  std::vector<lz_tensor> inputs, outputs, caches;
  std::vector<PyObject*> written;  // borrowed
  bool trains = false;             // a tensor requires gradients
  RunArguments arguments;
  int step = 0;

  bool Read(PyObject* args) {
    PyObject *capsule, *in, *out, *cached;
    long long past = 0;
    int64_t policy = 0;
    if (!PyArg_ParseTuple(args, "OO!O!O!L|i", &capsule, &PyTuple_Type, &in, &PyTuple_Type, &out, &PyTuple_Type, &cached,
                          &past, &step) ||
        !ReadPolicy(&policy)) {
      return false;
    }
    auto* held = static_cast<PythonProgram*>(PyCapsule_GetPointer(capsule, kCapsule));
    if (!held) return false;
    program = held->program.get();
    trains = held->trains;
    if (!All(in, "input", &inputs) || !All(out, "output", &outputs) || !All(cached, "cache", &caches)) return false;
    if (outputs.empty() || outputs[0].ndim != 3) {
      return Wrong(StatusCode::kInvalidRequest, "output 0", "(batch, length, width)", "no such tensor");
    }
    for (PyObject* tuple : {out, cached}) {
      for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) {
        if (PyTuple_GetItem(tuple, i) != Py_None) written.push_back(PyTuple_GetItem(tuple, i));
      }
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(in); ++i) {
      if (program->WritesInput(size_t(i)) && PyTuple_GetItem(in, i) != Py_None)
        written.push_back(PyTuple_GetItem(in, i));
    }
    arguments = {.batch = outputs[0].shape[0],
                 .length = outputs[0].shape[1],
                 .past = past,
                 .inputs = inputs,
                 .outputs = outputs,
                 .caches = caches,
                 .policy = policy,
                 .owner = args,
                 .owner_calls = &kArguments,
                 .listener = PythonRuntime()->listener};
    return true;
  }

  bool All(PyObject* tuple, const char* kind, std::vector<lz_tensor>* tensors) {
    tensors->resize(size_t(PyTuple_Size(tuple)));
    for (size_t i = 0; i < tensors->size(); ++i) {
      PyObject* object = PyTuple_GetItem(tuple, Py_ssize_t(i));
      if (!ToTensor(object, kind + (" " + std::to_string(i)), &(*tensors)[i])) return false;
      trains |= object != Py_None && RequiresGrad(object);
    }
    return true;
  }

  // A program reads and writes memory, so nothing that only torch's own dispatch respects may be active.
  bool MayRun() const {
    if (!ModesAllowFastPath()) {
      return Wrong(StatusCode::kInvalidRequest, "mode", "plain eager or inference mode",
                   "a transform, a dispatch or function mode, autocast or a trace", "call the operations one by one");
    }
    if (!trains || !GradEnabled()) return true;
    return Wrong(StatusCode::kInvalidRequest, "gradients", "none", "tensors or weights that require them",
                 "call it under torch.no_grad(), or the operations one by one");
  }
};

PyObject* Run(PyObject*, PyObject* args) {
  Tensors t;
  if (!t.Read(args) || !t.MayRun()) return nullptr;
  const lz_parallel parallel = TorchParallel();
  if (parallel.run) t.arguments.parallel = &parallel;
  if (!BumpVersions(t.written.data(), Py_ssize_t(t.written.size()))) return nullptr;
  const Status status = [&] {
    const ReleasedGil released;
    return t.program->Run(t.arguments);
  }();
  if (!status.ok()) return Raise(status);
  Py_RETURN_NONE;
}

PyObject* Kernels(PyObject*, PyObject* args) {
  Tensors t;
  if (!t.Read(args)) return nullptr;
  const auto plans = [&] {
    const ReleasedGil released;
    return t.program->Plans(t.arguments);
  }();
  if (!plans.ok()) return Raise(plans.status());
  PyObject* list = PyList_New(Py_ssize_t(plans->size()));
  for (size_t i = 0; list && i < plans->size(); ++i) {
    PyList_SetItem(list, Py_ssize_t(i), PyUnicode_FromString((*plans)[i]->kernel->id.c_str()));
  }
  return list;
}

// (arena, room for outputs of one step): bytes per row of a run.
PyObject* RowBytes(PyObject*, PyObject* capsule) {
  const auto* held = static_cast<const PythonProgram*>(PyCapsule_GetPointer(capsule, kCapsule));
  if (!held) return nullptr;
  return Py_BuildValue("LL", static_cast<long long>(held->program->ArenaBytes(1)),
                       static_cast<long long>(held->program->SpareBytes(1)));
}

PyObject* ExplainStep(PyObject*, PyObject* args) {
  Tensors t;
  if (!t.Read(args)) return nullptr;
  auto json = t.program->Explain(t.arguments, size_t(t.step));
  return json.ok() ? PyUnicode_FromString(json->c_str()) : Raise(json.status());
}

PyObject* ProgramsMayRun(PyObject*, PyObject*) { return PyBool_FromLong(TorchAttached() && ModesAllowFastPath()); }

// (generation of all epochs, id of the policy scope in force): plans made under the same two are still those that a
// call would use.
PyObject* PlansStamp(PyObject*, PyObject*) {
  int64_t policy = 0;
  if (!ReadPolicy(&policy)) return nullptr;
  const auto generation = static_cast<unsigned long long>(Engine::Get().epochs().Generation());
  return Py_BuildValue("KL", generation, static_cast<long long>(policy));
}

}  // namespace

PyMethodDef kProgramMethods[] = {
    {"program", &Make, METH_VARARGS, nullptr},
    {"run_program", &Run, METH_VARARGS, nullptr},
    {"program_kernels", &Kernels, METH_VARARGS, nullptr},
    {"program_row_bytes", &RowBytes, METH_O, nullptr},
    {"explain_program", &ExplainStep, METH_VARARGS, nullptr},
    {"programs_may_run", &ProgramsMayRun, METH_NOARGS, nullptr},
    {"plans_stamp", &PlansStamp, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lz::python
