// Inspection of a call by the engine, and the calls that the slow path returns: nothing here is on the fast path.
#include "question.h"

#include "bindings/profiler_event.h"
#include "random.h"
#include "torch_bridge.h"

namespace lz::door {

bool ReadQuestion(PyObject* args, Question* q) {
  PyObject *callable, *positional, *named;
  const char* device = nullptr;
  int of_chosen = 0;
  if (!PyArg_ParseTuple(args, "OO!O!|zp", &callable, &PyTuple_Type, &positional, &PyDict_Type, &named, &device,
                        &of_chosen)) {
    return false;
  }
  if (of_chosen) q->proofs = Proofs::kChosen;
  if (device) q->device = device;
  q->door = DoorOf(callable);
  if (!q->door) {
    PyErr_SetString(PyExc_TypeError, "wanted one of LayerZero's operations");
    return false;
  }
  std::vector<PyObject*> all;
  for (Py_ssize_t i = 0; i < PyTuple_Size(positional); ++i) all.push_back(PyTuple_GetItem(positional, i));
  PyObject* keys = PyDict_Keys(named);
  PyObject* names = PyList_AsTuple(keys);
  Py_DecRef(keys);
  for (Py_ssize_t i = 0; i < PyTuple_Size(names); ++i) {
    all.push_back(PyDict_GetItemWithError(named, PyTuple_GetItem(names, i)));
  }
  const bool parsed = ParseArguments(*q->door, all.data(), PyTuple_Size(positional), names, &q->arguments);
  Py_DecRef(names);
  if (!parsed) return false;
  q->request.emplace(*q->door->op);
  const Read read = ReadTensorsOrDescriptions(*q->door, q->arguments, &*q->request, &q->descriptions);
  if (read == Read::kSlow) {
    PyErr_SetString(PyExc_TypeError, "wanted plain tensors outside torch's modes and transforms");
  }
  if (read == Read::kOk && LeavesDraw(*q->door, q->arguments)) DescribeDraw(*q->door, &*q->request, &q->descriptions);
  return read == Read::kOk && ReadScalars(*q->door, q->arguments, &*q->request);
}

PyObject* Check(PyObject*, PyObject* args) {
  Question q;
  if (!ReadQuestion(args, &q)) return nullptr;
  const Request& r = *q.request;
  if (Status status = Engine::Get().Prepare(*q.request); !status.ok()) return Raise(status, &*q.request);
  if (!TellLayout(r)) return nullptr;
  if (r.op->layout_names().empty()) Py_RETURN_NONE;
  return PyUnicode_FromString(r.op->layout_names()[size_t(r.layout)].c_str());
}

PyObject* Explain(PyObject*, PyObject* args) {
  Question q;
  if (!ReadQuestion(args, &q)) return nullptr;
  auto text = Engine::Get().Explain(*q.request, q.device, q.proofs);
  if (!text.ok()) return Raise(text.status());
  return PyUnicode_FromStringAndSize(text->data(), Py_ssize_t(text->size()));
}

PyObject* Which(PyObject*, PyObject* args) {
  Question q;
  if (!ReadQuestion(args, &q)) return nullptr;
  if (Status status = Engine::Get().Prepare(*q.request); !status.ok()) return Raise(status, &*q.request);
  Box site;
  auto plan = SelectOutside(*q.request, &site);
  if (!plan.ok()) return Raise(plan.status(), &*q.request);
  return Py_BuildValue("sI", (*plan)->kernel->id.c_str(), (*plan)->id);
}

PyObject* CallDifferentiable(PyObject*, PyObject* args) {
  if (!TorchAttached() || !ModesAllowFastDoor()) {
    Py_IncRef(Py_NotImplemented);
    return Py_NotImplemented;
  }
  Question q;
  if (!ReadQuestion(args, &q)) return nullptr;
  Request& r = *q.request;
  if (Status status = Engine::Get().Prepare(r); !status.ok()) return Raise(status, &r);
  Box site;
  auto plan = SelectOutside(r, &site);
  if (!plan.ok()) return Raise(plan.status(), &r);
  if (!TellLayout(r)) return nullptr;
  if ((*plan)->kernel->spec.call == CallKind::kNative) {
    PyErr_Format(PyExc_RuntimeError, "%s carries no gradient", (*plan)->kernel->id.c_str());
    return nullptr;
  }
  PyObject* tensors[kMaxTensors];
  for (size_t i = 0; i < r.op->num_inputs(); ++i) tensors[i] = q.arguments.params[r.op->input_params()[i]];
  const ProfilerEvent event(*(*plan)->kernel);
  return CallHostOrFallback(**plan, r, tensors, nullptr);
}

}  // namespace lz::door
