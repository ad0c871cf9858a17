// Inspection of a call by the engine, and the calls that the slow path returns: nothing here is on the fast path.
#include "explain.h"

#include "random.h"
#include "torch_bridge.h"

namespace lz::python {

bool ReadExplainRequest(PyObject* args, ExplainRequest* q) {
  PyObject *callable, *positional, *named;
  const char* device = nullptr;
  int of_chosen = 0, capturing = 0;
  if (!PyArg_ParseTuple(args, "OO!O!|zpp", &callable, &PyTuple_Type, &positional, &PyDict_Type, &named, &device,
                        &of_chosen, &capturing)) {
    return false;
  }
  if (of_chosen) q->proofs = Proofs::kChosen;
  if (device) q->device = device;
  q->capturing = capturing;
  q->binding = BindingOf(callable);
  if (!q->binding) {
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
  const bool parsed = ParseArguments(*q->binding, all.data(), PyTuple_Size(positional), names, &q->arguments);
  Py_DecRef(names);
  if (!parsed) return false;
  q->request.emplace(*q->binding->op);
  const Read read = ReadTensorsOrDescriptions(*q->binding, q->arguments, &*q->request, &q->descriptions);
  if (read == Read::kOk && NeedsDraw(*q->binding, q->arguments))
    DescribeDraw(*q->binding, &*q->request, &q->descriptions);
  return read == Read::kOk && ReadScalars(*q->binding, q->arguments, &*q->request);
}

PyObject* Check(PyObject*, PyObject* args) {
  ExplainRequest q;
  if (!ReadExplainRequest(args, &q)) return nullptr;
  const Request& r = *q.request;
  if (Status status = Engine::Get().Bind(*q.request); !status.ok()) return Raise(status, &*q.request);
  if (!WarnIfLayoutGuessed(r)) return nullptr;
  if (r.op->layout_names().empty()) Py_RETURN_NONE;
  return PyUnicode_FromString(r.op->layout_names()[size_t(r.layout)].c_str());
}

PyObject* Explain(PyObject*, PyObject* args) {
  ExplainRequest q;
  if (!ReadExplainRequest(args, &q)) return nullptr;
  if (q.capturing) q.request->flags |= LZ_FLAG_CAPTURING;
  auto text = Engine::Get().Explain(*q.request, q.device, q.proofs);
  if (!text.ok()) return Raise(text.status());
  return PyUnicode_FromStringAndSize(text->data(), Py_ssize_t(text->size()));
}

PyObject* Which(PyObject*, PyObject* args) {
  ExplainRequest q;
  if (!ReadExplainRequest(args, &q)) return nullptr;
  if (Status status = Engine::Get().Bind(*q.request); !status.ok()) return Raise(status, &*q.request);
  InlineCache site;
  auto plan = SelectWithoutGil(*q.request, &site);
  if (!plan.ok()) return Raise(plan.status(), &*q.request);
  return Py_BuildValue("sI", (*plan)->kernel->id.c_str(), (*plan)->id);
}

PyObject* CallDifferentiable(PyObject*, PyObject* args) {
  if (!TorchAttached() || !ModesAllowFastPath()) {
    Py_IncRef(Py_NotImplemented);
    return Py_NotImplemented;
  }
  ExplainRequest q;
  if (!ReadExplainRequest(args, &q)) return nullptr;
  Request& r = *q.request;
  PyObject* tensors[kMaxTensors];
  for (size_t i = 0; i < r.op->num_inputs(); ++i) tensors[i] = q.arguments.params[r.op->input_params()[i]];
  InlineCache site;
  return RunFromPython(r, &site, tensors, nullptr, true);
}

}  // namespace lz::python
