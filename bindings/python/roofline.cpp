#include "roofline.h"

#include "base/usable_cpus.h"
#include "bench/roofline/roofline.h"
#include "call.h"
#include "torch_bridge.h"

namespace lz::python {

// The threads that calls have: torch's if it is attached. A pool of ours would wait for cores on which torch's spin.
static lz_parallel Threads() {
  const lz_parallel torch = TorchParallel();
  return torch.run ? torch : Engine::Get().selector().parallel();
}

PyObject* ReadStream(PyObject*, PyObject* args) {
  unsigned long long address;
  long long bytes;
  if (!PyArg_ParseTuple(args, "KL", &address, &bytes)) return nullptr;
  const auto sum = roofline::ReadStream(reinterpret_cast<const void*>(address), bytes, Threads());
  return PyLong_FromUnsignedLongLong(sum);
}

PyObject* CopyStream(PyObject*, PyObject* args) {
  unsigned long long from, to;
  long long bytes;
  if (!PyArg_ParseTuple(args, "KKL", &from, &to, &bytes)) return nullptr;
  roofline::CopyStream(reinterpret_cast<const void*>(from), reinterpret_cast<void*>(to), bytes, Threads());
  Py_RETURN_NONE;
}

PyObject* MultiplyAdds(PyObject*, PyObject* args) {
  long long rounds;
  if (!PyArg_ParseTuple(args, "L", &rounds)) return nullptr;
  return PyLong_FromLongLong(roofline::MultiplyAdds(rounds, Threads()));
}

PyObject* MultiplyWeights(PyObject*, PyObject* args) {
  int stored, multiplied;
  long long rounds;
  if (!PyArg_ParseTuple(args, "iiL", &stored, &multiplied, &rounds)) return nullptr;
  return PyLong_FromLongLong(
      roofline::MultiplyWeights(roofline::StoredAs(stored), roofline::MultipliedAs(multiplied), rounds, Threads()));
}

PyObject* UsableProcessors(PyObject*, PyObject*) { return PyLong_FromLong(UsableCpus()); }

PyObject* ForkJoin(PyObject*, PyObject* args) {
  long long loops;
  int team = 0;
  if (!PyArg_ParseTuple(args, "L|p", &loops, &team)) return nullptr;
  const lz_parallel parallel = Threads();
  const double seconds = roofline::ForkJoin(loops, parallel, team != 0);
  return Py_BuildValue("(id)", int(parallel.num_threads), seconds);
}

}  // namespace lz::python
