#include "random.h"

#include "torch_bridge.h"

namespace lz::door {
namespace {

bool Given(PyObject* value) { return value && value != Py_None; }

}  // namespace

bool LeavesDraw(const OpDoor& door, const Arguments& a) {
  if (!door.draws) return false;
  const Operation& op = *door.op;
  return !Given(a.params[op.scalar_params()[door.draws->seed]]) &&
         !Given(a.params[op.scalar_params()[door.draws->offset]]) &&
         !Given(a.params[op.input_params()[door.draws->uniform]]);
}

bool Drawn::Into(const OpDoor& door, Arguments* a, Request* r) {
  const Operation& op = *door.op;
  PyObject* rows = a->params[op.input_params()[door.draws->rows]];
  if (!Given(rows) || !g_hooks.draw) return true;  // the contract reports what is missing
  tensor_ = PyObject_CallFunction(g_hooks.draw, "Oi", rows, int(door.draws->pairs));
  if (!tensor_) return false;
  a->params[op.input_params()[door.draws->uniform]] = tensor_;
  if (IsTensor(tensor_) && ReadTensor(tensor_, &r->tensors[door.draws->uniform])) return true;
  PyErr_Format(PyExc_RuntimeError, "%s: torch.rand gave no plain tensor; pass seed=", door.method.ml_name);
  return false;
}

void DescribeDraw(const OpDoor& door, Request* r, Descriptions* descriptions) {
  const lz_tensor& rows = r->tensors[door.draws->rows];
  if (rows.ndim < 1) return;
  lz_tensor& t = r->tensors[door.draws->uniform];
  const DTypeInfo& dtype = Info(DType::kF64);
  t = {};
  t.shape = descriptions->sizes[door.draws->uniform];
  t.strides = t.shape + kMaxRank;
  t.ndim = door.draws->Shape(rows, t.shape);
  t.dtype = {dtype.dlpack_code, dtype.bits, dtype.lanes};
  t.device = rows.device;
  int64_t stride = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    t.strides[d] = stride;
    stride *= t.shape[d];
  }
}

}  // namespace lz::door
