#include "timing.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "call.h"
#include "engine/served_calls.h"
#include "perfdb/compare.h"
#include "platform/cuda_events.h"

namespace lz::python {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// One of the calls that are compared: `loops` calls are a sample, each with the next one of `turns`.
struct Side {
  PyObject* callable;
  bool prepared;
  std::vector<std::vector<PyObject*>> turns;  // borrowed from the caller's tuples
  PyObject* tuples;                           // the same
  Py_ssize_t loops;
  size_t next = 0;

  bool Call() {
    const size_t turn = next++ % turns.size();
    PyObject* result = prepared ? RunPrepared(callable, turns[turn].data(), Py_ssize_t(turns[turn].size()))
                                : PyObject_Call(callable, PyTuple_GetItem(tuples, Py_ssize_t(turn)), nullptr);
    Py_XDECREF(result);
    return result != nullptr;
  }
};

bool ReadSide(PyObject* given, Side* side) {
  if (!PyTuple_Check(given) ||
      !PyArg_ParseTuple(given, "OO!n", &side->callable, &PyTuple_Type, &side->tuples, &side->loops))
    return PyErr_Occurred() ? false : (PyErr_SetString(PyExc_TypeError, "a side is (callable, turns, loops)"), false);
  side->prepared = IsPrepared(side->callable);
  for (Py_ssize_t t = 0; t < PyTuple_Size(side->tuples); ++t) {
    PyObject* turn = PyTuple_GetItem(side->tuples, t);
    if (!PyTuple_Check(turn)) break;
    std::vector<PyObject*>& tensors = side->turns.emplace_back();
    for (Py_ssize_t i = 0; i < PyTuple_Size(turn); ++i) tensors.push_back(PyTuple_GetItem(turn, i));
  }
  if (!side->turns.empty() && Py_ssize_t(side->turns.size()) == PyTuple_Size(side->tuples) && side->loops > 0)
    return true;
  PyErr_SetString(PyExc_ValueError, "a side has a tuple of tuples, at least one, and at least one loop");
  return false;
}

// One sample: microseconds per call, and of the host's part of it.
bool Sample(Side* side, CudaTimer* timer, void* stream, double* us, double* host) {
  if (timer) timer->Start(stream);
  const Clock::time_point start = Clock::now();
  for (Py_ssize_t i = 0; i < side->loops; ++i) {
    if (!side->Call()) return false;
  }
  *host = MicrosecondsSince(start) / double(side->loops);
  *us = *host;
  if (!timer) return true;
  timer->Stop(stream);
  *us = timer->Wait() / double(side->loops);
  if (timer->ok()) return true;
  PyErr_SetString(PyExc_RuntimeError, "CUDA error: an event of the driver failed; the device is lost for this process");
  return false;
}

PyObject* TimeRounds(PyObject*, PyObject* args) {
  PyObject *given, *order;
  int device = -1;
  unsigned long long stream = 0;
  if (!PyArg_ParseTuple(args, "O!O!|iK", &PyTuple_Type, &given, &PyTuple_Type, &order, &device, &stream))
    return nullptr;
  std::vector<Side> sides(size_t(PyTuple_Size(given)));
  for (size_t i = 0; i < sides.size(); ++i) {
    if (!ReadSide(PyTuple_GetItem(given, Py_ssize_t(i)), &sides[i])) return nullptr;
  }
  std::unique_ptr<CudaTimer> timer;
  if (device >= 0) {
    timer = std::make_unique<CudaTimer>(device);
    if (!timer->ok()) {
      PyErr_SetString(PyExc_RuntimeError, "CUDA error: wanted events of the driver, got none");
      return nullptr;
    }
  }
  PyObject* samples = PyList_New(0);
  for (Py_ssize_t n = 0; samples && n < PyTuple_Size(order); ++n) {
    const Py_ssize_t side = PyLong_AsSsize_t(PyTuple_GetItem(order, n));
    if (side < 0 || size_t(side) >= sides.size()) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "order has the numbers of sides");
      Py_CLEAR(samples);
      break;
    }
    double us = 0, host = 0;
    PyObject* row = nullptr;
    if (PyErr_CheckSignals() == 0 &&
        Sample(&sides[size_t(side)], timer.get(), reinterpret_cast<void*>(stream), &us, &host))
      row = Py_BuildValue("(dd)", us, host);
    if (!row || PyList_Append(samples, row) < 0) Py_CLEAR(samples);
    Py_XDECREF(row);
  }
  return samples;
}

bool ReadDoubles(PyObject* given, std::vector<double>* values) {
  PyObject* items = PySequence_Tuple(given);
  for (Py_ssize_t i = 0; items && i < PyTuple_Size(items); ++i) {
    values->push_back(PyFloat_AsDouble(PyTuple_GetItem(items, i)));
  }
  Py_XDECREF(items);
  return !PyErr_Occurred();
}

PyObject* Indices(const std::vector<size_t>& indices) {
  PyObject* list = PyList_New(Py_ssize_t(indices.size()));
  for (size_t i = 0; list && i < indices.size(); ++i) {
    PyList_SetItem(list, Py_ssize_t(i), PyLong_FromSize_t(indices[i]));
  }
  return list;
}

bool ReadPair(PyObject* args, std::vector<double>* a, std::vector<double>* b) {
  PyObject *first, *second;
  return PyArg_ParseTuple(args, "OO", &first, &second) && ReadDoubles(first, a) && ReadDoubles(second, b);
}

PyObject* PairedRatio(PyObject*, PyObject* args) {
  std::vector<double> a, b;
  if (!ReadPair(args, &a, &b)) return nullptr;
  const perfdb::Ratio ratio = perfdb::PairedRatio(a, b);
  return Py_BuildValue("(dddd)", ratio.value, ratio.low, ratio.high, ratio.confidence);
}

PyObject* SpreadOf(PyObject*, PyObject* args) {
  std::vector<double> first, again;
  return ReadPair(args, &first, &again) ? PyFloat_FromDouble(perfdb::SpreadOf(first, again)) : nullptr;
}

PyObject* Replaces(PyObject*, PyObject* args) {
  perfdb::Ratio ratio;
  double spread, least;
  if (!PyArg_ParseTuple(args, "ddddd", &ratio.value, &ratio.low, &ratio.high, &spread, &least)) return nullptr;
  return PyBool_FromLong(perfdb::Replaces(ratio, spread, least));
}

PyObject* Survivors(PyObject*, PyObject* args) {
  PyObject* given;
  Py_ssize_t kept, least;
  double limit;
  std::vector<double> us;
  if (!PyArg_ParseTuple(args, "Ondn", &given, &kept, &limit, &least) || !ReadDoubles(given, &us)) return nullptr;
  return Indices(perfdb::Survivors(us, size_t(kept), limit, size_t(least)));
}

PyObject* Wrong(const char* text) {
  PyErr_SetString(PyExc_ValueError, text);
  return nullptr;
}

PyObject* MajorityOf(PyObject*, PyObject* args) {
  PyObject* given;
  Py_ssize_t n;
  double bound;
  std::vector<double> distances;
  if (!PyArg_ParseTuple(args, "Ond", &given, &n, &bound) || !ReadDoubles(given, &distances)) return nullptr;
  if (n < 0 || distances.size() != size_t(n * n)) return Wrong("distances has n x n numbers");
  return Indices(perfdb::MajorityOf(distances, size_t(n), bound));
}

PyObject* BestVariants(PyObject*, PyObject* args) {
  PyObject *given, *weighted;
  Py_ssize_t kernels, k;
  std::vector<double> us, weights;
  if (!PyArg_ParseTuple(args, "OOnn", &given, &weighted, &kernels, &k)) return nullptr;
  if (!ReadDoubles(given, &us) || !ReadDoubles(weighted, &weights)) return nullptr;
  if (kernels < 1 || k < 1 || us.size() != weights.size() * size_t(kernels)) {
    return Wrong("us has calls x kernels numbers, weights one for each call, and k is at least 1");
  }
  const perfdb::Variants best = perfdb::BestVariants(us, weights, size_t(kernels), size_t(k));
  return Py_BuildValue("(Nd)", Indices(best.kernels), best.loss);
}

PyObject* RecordServed(PyObject*, PyObject* args) {
  int on;
  if (!PyArg_ParseTuple(args, "p", &on)) return nullptr;
  {
    const ReleasedGil released;
    RecordServedCalls(on != 0);
  }
  Py_RETURN_NONE;
}

PyObject* ServedCalls(PyObject*, PyObject*) {
  const std::string text = ServedCallsText();
  return PyUnicode_FromStringAndSize(text.data(), Py_ssize_t(text.size()));
}

PyObject* FlushServed(PyObject*, PyObject* args) {
  double seconds;
  if (!PyArg_ParseTuple(args, "d", &seconds)) return nullptr;
  {
    const ReleasedGil released;
    FlushServedCalls(seconds);
  }
  Py_RETURN_NONE;
}

// What of the process's policy needs Python: whether it tunes by itself, and whether samples are taken.
PyObject* MeasuringPolicy(PyObject*, PyObject*) {
  const auto policy = Engine::Get().PolicyInForce();
  const bool tunes = policy && policy->perfdb_enabled && policy->settings.at("perfdb.auto_tune") == "true";
  return Py_BuildValue(
      "(NN)", PyBool_FromLong(tunes),
      PyBool_FromLong(policy && std::strtod(policy->settings.at("perfdb.sample_rate").c_str(), nullptr) > 0));
}

}  // namespace

PyMethodDef kTimingMethods[] = {
    {"time_rounds", TimeRounds, METH_VARARGS,
     "time_rounds(sides, order, device=-1, stream=0): (us, host us) per call of each sample; a side is (callable, "
     "turns, "
     "loops)."},
    {"paired_ratio", PairedRatio, METH_VARARGS,
     "paired_ratio(a, b): (ratio, low, high, confidence that it is below 1)."},
    {"spread_of", SpreadOf, METH_VARARGS, "spread_of(first, again): the noise of a comparison."},
    {"replaces", Replaces, METH_VARARGS, "replaces(ratio, low, high, spread, least): whether a challenger wins."},
    {"survivors", Survivors, METH_VARARGS, "survivors(us, kept, limit, least): indices of the candidates that stay."},
    {"majority_of", MajorityOf, METH_VARARGS, "majority_of(distances, n, bound): indices of results that agree."},
    {"best_variants", BestVariants, METH_VARARGS, "best_variants(us, weights, kernels, k): (indices, loss)."},
    {"record_served_calls", RecordServed, METH_VARARGS, "record_served_calls(on): counts classes of calls."},
    {"served_calls", ServedCalls, METH_NOARGS, "The classes of calls that were counted, as JSON."},
    {"measuring_policy", MeasuringPolicy, METH_NOARGS, "(perfdb.auto_tune, whether perfdb.sample_rate is above 0)"},
    {"flush_served_calls", FlushServed, METH_VARARGS, "flush_served_calls(seconds): makes records of samples."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lz::python
