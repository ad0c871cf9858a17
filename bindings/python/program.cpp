#include "program.h"

#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "program/program.h"
#include "torch_bridge.h"

namespace lz::door {
namespace {

using Kind = ProgramValue::Kind;
constexpr const char* kCapsule = "layerzero.program";
constexpr const char* kKinds[] = {"weight", "input", "rows", "output", "cache"};

struct PythonProgram {
  std::unique_ptr<Program> program;
  PyObject* values = nullptr;  // keeps the weights
  ~PythonProgram() { Py_XDECREF(values); }
};

bool NotATensor(PyObject* object) {
  PyErr_Format(PyExc_TypeError, "program: wanted a plain tensor on the CPU, got %R", object);
  return false;
}

bool ToTensor(PyObject* object, lz_tensor* tensor) {
  tensor->ndim = -1;
  if (object == Py_None) return true;
  if (!IsTensor(object) || !ReadTensor(object, tensor) || tensor->device.type != 1) return NotATensor(object);
  return true;
}

bool ToDType(const char* name, DType* dtype) {
  for (size_t i = 0; i < size_t(DType::kCount); ++i) {
    if (Info(DType(i)).name == name) return *dtype = DType(i), true;
  }
  PyErr_Format(PyExc_ValueError, "program: wanted the name of a dtype, got '%s'", name);
  return false;
}

bool ToValue(PyObject* tuple, ProgramValue* value) {
  const char *kind = nullptr, *dtype = nullptr;
  PyObject* second = nullptr;
  if (!PyArg_ParseTuple(tuple, "s|Os", &kind, &second, &dtype)) return false;
  size_t k = 0;
  while (k < std::size(kKinds) && std::string_view(kKinds[k]) != kind) ++k;
  if (k == std::size(kKinds)) return PyErr_Format(PyExc_ValueError, "program: no kind of value '%s'", kind), false;
  value->kind = Kind(k);
  if (value->kind == Kind::kInput) return true;
  if (value->kind == Kind::kWeight) {
    if (!second || second == Py_None || !ToTensor(second, &value->weight)) return second && NotATensor(second);
    value->shape.assign(value->weight.shape, value->weight.shape + value->weight.ndim);
    value->strides.assign(value->weight.strides, value->weight.strides + value->weight.ndim);
    return true;
  }
  value->width = second ? PyLong_AsLongLong(second) : 0;
  return !PyErr_Occurred() && ToDType(dtype ? dtype : "", &value->dtype);
}

bool ToOperand(PyObject* object, Operand* operand) {
  if (object == Py_None) return true;
  if (PyLong_Check(object)) {
    operand->value = int32_t(PyLong_AsLong(object));
    return !PyErr_Occurred();
  }
  PyObject* axes = nullptr;
  long long column = 0;
  int past = 0;
  if (!PyArg_ParseTuple(object, "iLOp", &operand->value, &column, &axes, &past)) return false;
  operand->column = column;
  operand->past = past != 0;
  for (Py_ssize_t i = 0; i < PyTuple_Size(axes); ++i) {
    operand->axes.push_back(PyLong_AsLongLong(PyTuple_GetItem(axes, i)));
  }
  return !PyErr_Occurred();
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
  const OpDoor* door = DoorOf(callable);
  if (!door) return PyErr_Format(PyExc_TypeError, "program: wanted an operation, got %R", callable), false;
  step->op = door->op;
  step->scalars.resize(step->op->num_scalars());
  for (size_t i = 0; i < step->scalars.size(); ++i) {
    const Param& param = step->op->scalar(i);
    PyObject* given = PyDict_GetItemString(scalars, std::string(param.name).c_str());
    if (given && !ReadScalar(*door, param, given, &step->scalars[i])) return false;
  }
  return ToOperands(inputs, &step->inputs) && ToOperands(outputs, &step->outputs);
}

PyObject* Make(PyObject*, PyObject* args) {
  PyObject *value_list, *step_list;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &value_list, &PyList_Type, &step_list)) return nullptr;
  std::vector<ProgramValue> values(size_t(PyList_Size(value_list)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!ToValue(PyList_GetItem(value_list, Py_ssize_t(i)), &values[i])) return nullptr;
  }
  std::vector<ProgramStep> steps(size_t(PyList_Size(step_list)));
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!ToStep(PyList_GetItem(step_list, Py_ssize_t(i)), &steps[i])) return nullptr;
  }
  auto made = Program::Make(Engine::Get(), std::move(values), std::move(steps));
  if (!made.ok()) return Raise(made.status());
  auto program = std::make_unique<PythonProgram>();
  program->program = std::move(*made);
  program->values = PyList_AsTuple(value_list);
  return PyCapsule_New(program.release(), kCapsule, [](PyObject* capsule) {
    delete static_cast<PythonProgram*>(PyCapsule_GetPointer(capsule, kCapsule));
  });
}

// The tensors of one run, as Python gave them.
struct Tensors {
  Program* program = nullptr;
  std::vector<lz_tensor> inputs, outputs, caches;
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
    if (!All(in, &inputs) || !All(out, &outputs) || !All(cached, &caches)) return false;
    if (outputs.empty() || outputs[0].ndim != 3) {
      PyErr_SetString(PyExc_ValueError, "program: wanted outputs of three axes");
      return false;
    }
    arguments = {.batch = outputs[0].shape[0],
                 .length = outputs[0].shape[1],
                 .past = past,
                 .inputs = inputs,
                 .outputs = outputs,
                 .caches = caches,
                 .policy = policy};
    return true;
  }

  static bool All(PyObject* tuple, std::vector<lz_tensor>* tensors) {
    tensors->resize(size_t(PyTuple_Size(tuple)));
    for (size_t i = 0; i < tensors->size(); ++i) {
      if (!ToTensor(PyTuple_GetItem(tuple, Py_ssize_t(i)), &(*tensors)[i])) return false;
    }
    return true;
  }
};

PyObject* Run(PyObject*, PyObject* args) {
  Tensors t;
  if (!t.Read(args)) return nullptr;
  const lz_parallel parallel = TorchParallel();
  if (parallel.run) t.arguments.parallel = &parallel;
  PyThreadState* state = PyEval_SaveThread();
  const Status status = t.program->Run(t.arguments);
  PyEval_RestoreThread(state);
  if (!status.ok()) return Raise(status);
  Py_RETURN_NONE;
}

PyObject* Kernels(PyObject*, PyObject* args) {
  Tensors t;
  if (!t.Read(args)) return nullptr;
  PyThreadState* state = PyEval_SaveThread();
  const auto plans = t.program->Plans(t.arguments);
  PyEval_RestoreThread(state);
  if (!plans.ok()) return Raise(plans.status());
  PyObject* list = PyList_New(0);
  for (const Plan* plan : *plans) {
    PyObject* id = PyUnicode_FromString(plan->kernel->id.c_str());
    PyList_Append(list, id);
    Py_XDECREF(id);
  }
  return list;
}

PyObject* ExplainStep(PyObject*, PyObject* args) {
  Tensors t;
  if (!t.Read(args)) return nullptr;
  auto json = t.program->Explain(t.arguments, size_t(t.step));
  return json.ok() ? PyUnicode_FromString(json->c_str()) : Raise(json.status());
}

}  // namespace

PyMethodDef kProgramMethods[] = {
    {"program", &Make, METH_VARARGS, nullptr},
    {"run_program", &Run, METH_VARARGS, nullptr},
    {"program_kernels", &Kernels, METH_VARARGS, nullptr},
    {"explain_program", &ExplainStep, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lz::door
