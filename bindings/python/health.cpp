#include "health.h"

#include <string>

#include "call.h"
#include "explain.h"
#include "gil.h"

namespace lz::python {
namespace {

PyObject* Health(PyObject*, PyObject*) {
  const std::string text = [] {
    const ReleasedGil released;
    return Engine::Get().HealthText();
  }();
  return PyUnicode_FromStringAndSize(text.data(), Py_ssize_t(text.size()));
}

PyObject* ResetHealth(PyObject*, PyObject* args) {
  const char* kernel;
  if (!PyArg_ParseTuple(args, "s", &kernel)) return nullptr;
  const auto changed = [&] {
    const ReleasedGil released;
    return Engine::Get().ResetHealth(kernel);
  }();
  return changed.ok() ? PyLong_FromSize_t(*changed) : Raise(changed.status());
}

PyObject* SetGraphVerdict(PyObject*, PyObject* args) {
  PyObject* call;
  const char *kernel, *outcome, *detail;
  if (!PyArg_ParseTuple(args, "O!sss", &PyTuple_Type, &call, &kernel, &outcome, &detail)) return nullptr;
  ExplainRequest q;
  if (!ReadExplainRequest(call, &q)) return nullptr;
  const Status status = Engine::Get().SetGraphVerdict(*q.request, kernel, outcome, detail);
  if (!status.ok()) return Raise(status, &*q.request);
  Py_RETURN_NONE;
}

PyObject* Shadow(PyObject*, PyObject* args) {
  int delta;
  if (!PyArg_ParseTuple(args, "i", &delta)) return nullptr;
  {
    const ReleasedGil released;  // an observer may belong to Python
    Engine::Get().Shadow(delta);
  }
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef kHealthMethods[] = {
    {"health", Health, METH_NOARGS, "Breakers, quarantine and what they mean for the process, as JSON."},
    {"reset_health", ResetHealth, METH_VARARGS, "reset_health(kernel glob): how many breakers and rows it had."},
    {"set_graph_verdict", SetGraphVerdict, METH_VARARGS,
     "set_graph_verdict((operation, args, kwargs), kernel id, outcome, detail): keeps what a proof found."},
    {"shadow", Shadow, METH_VARARGS, "shadow(1 or -1): turns shadow checks of calls with a rate on or off."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lz::python
