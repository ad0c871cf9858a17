#include "verify.h"

#include <cstring>

#include "call.h"
#include "torch_bridge.h"
#include "verify/random.h"
#include "verify/run.h"

namespace lz::python {
namespace {

using verify::Case;
using verify::OwnedTensor;

PyObject* Sizes(const std::vector<int64_t>& sizes) {
  PyObject* tuple = PyTuple_New(Py_ssize_t(sizes.size()));
  for (size_t i = 0; tuple && i < sizes.size(); ++i) {
    PyTuple_SetItem(tuple, Py_ssize_t(i), PyLong_FromLongLong(sizes[i]));
  }
  return tuple;
}

PyObject* Tensor(const OwnedTensor& t) {
  return Py_BuildValue("y#sNNL", t.data(), Py_ssize_t(t.num_bytes()), Info(t.dtype()).name.data(), Sizes(t.shape()),
                       Sizes(t.strides()), static_cast<long long>(t.offset()));
}

PyObject* ScalarValue(const Param& p, const lz_scalar& s) {
  if (p.kind == ParamKind::kFloat) return PyFloat_FromDouble(s.value.f);
  if (p.kind == ParamKind::kInt) return PyLong_FromLongLong(s.value.i);
  if (p.kind == ParamKind::kBool) return PyBool_FromLong(long(s.value.i));
  std::string_view choices = p.choices;
  for (int64_t i = s.value.i; i > 0; --i) choices.remove_prefix(choices.find('|') + 1);
  choices = choices.substr(0, choices.find('|'));
  return PyUnicode_FromStringAndSize(choices.data(), Py_ssize_t(choices.size()));
}

// Steals `value`.
bool Put(PyObject* dict, std::string_view name, PyObject* value) {
  const bool done = value && PyDict_SetItemString(dict, std::string(name).c_str(), value) == 0;
  Py_XDECREF(value);
  return done;
}

Result<Case> Parse(const char* name, const char* line) {
  const Operation* op = Engine::Get().Find(name);
  if (!op) return Status(StatusCode::kUnknownName, {.field = "operation", .got = name});
  return verify::ParseCase(*op, line);
}

// The memory of one output as passed from Python; `*text` describes what does not fit.
OwnedTensor OutputOf(const OutputShape& shape, PyObject* given, std::string* text) {
  std::vector<int64_t> sizes(shape.physical, shape.physical + shape.ndim);
  OwnedTensor tensor = OwnedTensor::RowMajor(shape.dtype, sizes);
  PyObject *bytes, *dims;
  const char* dtype;
  if (!PyArg_ParseTuple(given, "O!sO!", &PyBytes_Type, &bytes, &dtype, &PyTuple_Type, &dims)) return {};
  std::vector<int64_t> got;
  for (Py_ssize_t i = 0; i < PyTuple_Size(dims); ++i) got.push_back(PyLong_AsLongLong(PyTuple_GetItem(dims, i)));
  if (got != sizes || DTypeFromName(dtype) != shape.dtype) {
    *text = "wanted " + std::string(Info(shape.dtype).name) + " [";
    for (int64_t n : sizes) *text += std::to_string(n) + " ";
    *text += "], got " + std::string(dtype) + " [";
    for (int64_t n : got) *text += std::to_string(n) + " ";
    *text += "]";
    return tensor;
  }
  std::memcpy(tensor.data(), PyBytes_AsString(bytes), size_t(PyBytes_Size(bytes)));
  return tensor;
}

// Copies the tensors written in place, which follow the outputs, to the case's own memory, where the request
// reads them.
bool TakeWritten(Case* c, size_t num_outputs, PyObject* given) {
  Py_ssize_t next = Py_ssize_t(num_outputs);
  for (size_t i = 0; i < c->tensors.size(); ++i) {
    OwnedTensor& t = c->tensors[i];
    if (!c->op->input(i).mutated || !t.given()) continue;
    PyObject* item = next < PyTuple_Size(given) ? PyTuple_GetItem(given, next++) : nullptr;
    PyObject* bytes = item && PyTuple_Check(item) ? PyTuple_GetItem(item, 0) : nullptr;
    const int64_t size = ByteSize(t.dtype());
    if (!bytes || PyBytes_Size(bytes) != t.numel() * size) {
      PyErr_Format(PyExc_ValueError, "%s: wanted its bytes after the outputs", c->op->input(i).name.data());
      return false;
    }
    const char* const from = PyBytes_AsString(bytes);
    char* const first = t.data() + t.offset() * size;
    t.ForEach([&](int64_t flat, int64_t to) { std::memcpy(first + to * size, from + flat * size, size_t(size)); });
  }
  return true;
}

PyObject* ReportDict(const verify::OutputReport& r, const std::string& text) {
  return Py_BuildValue("{s:s,s:N,s:s,s:L,s:d,s:d,s:d,s:d,s:s}", "output", r.output.c_str(), "ok", PyBool_FromLong(r.ok),
                       "measure", r.measure.c_str(), "position", static_cast<long long>(r.position), "wanted", r.wanted,
                       "got", r.got, "error", r.error, "bound", r.bound, "text", text.c_str());
}

}  // namespace

PyObject* VerifyCase(PyObject*, PyObject* args) {
  const char *name, *line;
  if (!PyArg_ParseTuple(args, "ss", &name, &line)) return nullptr;
  auto c = Parse(name, line);
  if (!c.ok()) return Raise(c.status());
  PyObject* arguments = PyDict_New();
  if (!arguments) return nullptr;
  bool ok = true;
  for (size_t i = 0; ok && i < c->tensors.size(); ++i) {
    if (c->tensors[i].given()) ok = Put(arguments, c->op->input(i).name, Tensor(c->tensors[i]));
  }
  for (size_t i = 0; ok && i < c->scalars.size(); ++i) {
    if (c->scalars[i].given) ok = Put(arguments, c->op->scalar(i).name, ScalarValue(c->op->scalar(i), c->scalars[i]));
  }
  if (!ok) {
    Py_DecRef(arguments);
    return nullptr;
  }
  const char* layout = c->layout > 0 ? c->op->layout_names()[size_t(c->layout)].c_str() : nullptr;
  return Py_BuildValue("{s:s,s:z,s:N}", "refused", c->refused.c_str(), "layout", layout, "arguments", arguments);
}

PyObject* VerifyCompare(PyObject*, PyObject* args) {
  const char *name, *line, *numerics = "";
  PyObject* given;
  if (!PyArg_ParseTuple(args, "ssO!|s", &name, &line, &PyTuple_Type, &given, &numerics)) return nullptr;
  auto c = Parse(name, line);
  if (!c.ok()) return Raise(c.status());
  Request r = c->MakeRequest();
  if (Status status = Engine::Get().Bind(r); !status.ok()) return Raise(status);
  auto expected = verify::Expected::Of(r);
  if (!expected.ok()) return Raise(expected.status());
  std::vector<OwnedTensor> outputs(r.op->num_outputs());
  PyObject* reports = PyList_New(0);
  for (size_t o = 0; reports && o < outputs.size(); ++o) {
    verify::OutputReport report;
    report.output = std::string(r.op->contract().outputs[o].name);
    PyObject* item = Py_ssize_t(o) < PyTuple_Size(given) ? PyTuple_GetItem(given, Py_ssize_t(o)) : Py_None;
    std::string text;
    if ((item != Py_None) != (r.outputs[o].ndim >= 0)) {
      text = r.outputs[o].ndim >= 0 ? "missing" : "not an output of this call";
    } else if (r.outputs[o].ndim >= 0) {
      outputs[o] = OutputOf(r.outputs[o], item, &text);
      if (!outputs[o].given()) {
        Py_DecRef(reports);
        return nullptr;
      }
      BindOutput(r, o, outputs[o].tensor().data);
    }
    if (text.empty()) continue;
    report.ok = false;
    PyObject* dict = ReportDict(report, text);
    PyList_Append(reports, dict);
    Py_XDECREF(dict);
  }
  if (!reports || PyList_Size(reports) > 0) return reports;  // nothing to compare
  if (!TakeWritten(&*c, r.op->num_outputs(), given)) {
    Py_DecRef(reports);
    return nullptr;
  }
  for (const verify::OutputReport& report : expected->Compare(r, numerics)) {
    PyObject* dict = ReportDict(report, report.Text());
    PyList_Append(reports, dict);
    Py_XDECREF(dict);
  }
  return reports;
}

PyObject* VerifyRandom(PyObject*, PyObject* args) {
  const char* name;
  unsigned long long seed;
  int broken = 0;
  if (!PyArg_ParseTuple(args, "sK|p", &name, &seed, &broken)) return nullptr;
  const Operation* op = Engine::Get().Find(name);
  if (!op) return Raise(Status(StatusCode::kUnknownName, {.field = "operation", .got = name}));
  verify::RandomCalls calls(*op, seed);
  const std::string line = broken ? calls.Broken() : calls.Valid();
  return PyUnicode_FromStringAndSize(line.data(), Py_ssize_t(line.size()));
}

}  // namespace lz::python
