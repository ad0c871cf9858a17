// Prepared calls: everything but the tensors is fixed once.
#include <algorithm>
#include <memory>

#include "question.h"
#include "random.h"
#include "torch_bridge.h"

namespace lz::door {
namespace {

constexpr const char* kPreparedCapsule = "layerzero.prepared";

// Scalars, layout, kernel and policy are fixed, tensors are given at each call.
struct Prepared {
  OpDoor* door;
  std::vector<lz_scalar> scalars;
  int32_t layout = 0;
  int64_t policy = 0;
  bool draws = false;  // no seed was fixed: each call draws
  Box site;
};

PyObject* CallPrepared(PyObject* self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  auto* prepared = static_cast<Prepared*>(PyCapsule_GetPointer(self, kPreparedCapsule));
  OpDoor& door = *prepared->door;
  const Operation& op = *door.op;
  if (keywords && PyTuple_Size(keywords) > 0) {
    PyErr_Format(PyExc_TypeError, "a prepared %s takes its tensors by position; everything else was fixed by prepare",
                 door.method.ml_name);
    return nullptr;
  }
  if (size_t(num_args) > op.num_inputs()) {
    PyErr_Format(PyExc_TypeError, "a prepared %s takes its %zd tensors, got %zd arguments", door.method.ml_name,
                 Py_ssize_t(op.num_inputs()), num_args);
    return nullptr;
  }
  Arguments a;
  for (Py_ssize_t i = 0; i < num_args; ++i) a.params[op.input_params()[size_t(i)]] = args[i];
  Request r(op);
  if (ReadTensors(door, a, &r) != Read::kOk) {
    PyErr_Format(PyExc_TypeError,
                 "a prepared %s takes plain tensors that need no gradient, outside torch's modes; "
                 "call layerzero.%s instead",
                 door.method.ml_name, door.method.ml_name);
    return nullptr;
  }
  Drawn drawn;
  if (prepared->draws && LeavesDraw(door, a) && !drawn.Into(door, &a, &r)) return nullptr;
  std::copy(prepared->scalars.begin(), prepared->scalars.end(), r.scalars.begin());
  r.layout = prepared->layout;
  if (!ReadContext(&r)) return nullptr;
  if (prepared->policy != 0) r.policy = prepared->policy;
  if (Status status = Engine::Get().Prepare(r); !status.ok()) return Raise(status, &r);
  PyObject* tensors[kMaxTensors] = {};
  for (size_t i = 0; i < op.num_inputs(); ++i) tensors[i] = a.params[op.input_params()[i]];
  return SelectAndRun(r, &prepared->site, tensors, nullptr);
}

}  // namespace

PyObject* Prepare(PyObject*, PyObject* args) {
  Question q;
  if (!ReadQuestion(args, &q)) return nullptr;
  Request& r = *q.request;
  if (q.arguments.generator && q.arguments.generator != Py_None) {
    return Raise(Status(StatusCode::kInvalidRequest, {.field = std::string(r.op->name()) + ": generator",
                                                      .wanted = "none in a prepared call",
                                                      .got = "one",
                                                      .fix = "pass seed= here or uniform to each call"}));
  }
  auto prepared = std::make_unique<Prepared>(
      Prepared{.door = q.door, .policy = r.policy, .draws = LeavesDraw(*q.door, q.arguments)});
  prepared->scalars.assign(r.scalars.begin(), r.scalars.begin() + ptrdiff_t(r.op->num_scalars()));
  if (Status status = Engine::Get().Prepare(r); !status.ok()) return Raise(status, &r);
  if (!TellLayout(r)) return nullptr;
  prepared->layout = r.layout;
  if (auto plan = SelectOutside(r, &prepared->site); !plan.ok()) return Raise(plan.status(), &r);
  static PyMethodDef method = {"prepared", AsCFunction(&CallPrepared), METH_FASTCALL | METH_KEYWORDS,
                               "A prepared call: takes the operation's tensors."};
  PyObject* self = PyCapsule_New(prepared.release(), kPreparedCapsule, [](PyObject* capsule) {
    delete static_cast<Prepared*>(PyCapsule_GetPointer(capsule, kPreparedCapsule));
  });
  PyObject* callable = PyCFunction_NewEx(&method, self, nullptr);
  Py_XDECREF(self);
  return callable;
}

}  // namespace lz::door
