#include "random.h"

#include "torch_bridge.h"

namespace lz::python {
namespace {

bool Given(PyObject* value) { return value && value != Py_None; }

}  // namespace

bool NeedsDraw(const OpBinding& binding, const Arguments& a) {
  if (!binding.draws) return false;
  const Operation& op = *binding.op;
  return !Given(a.params[op.scalar_params()[binding.draws->seed]]) &&
         !Given(a.params[op.scalar_params()[binding.draws->offset]]) &&
         !Given(a.params[op.input_params()[binding.draws->uniform]]);
}

bool Drawn::Into(const OpBinding& binding, Arguments* a, Request* r) {
  const Operation& op = *binding.op;
  PyObject* rows = a->params[op.input_params()[binding.draws->rows]];
  if (!Given(rows) || !g_hooks.draw) return true;  // the contract reports what is missing
  tensor_ = PyObject_CallFunction(g_hooks.draw, "Oi", rows, int(binding.draws->pairs));
  if (!tensor_) return false;
  a->params[op.input_params()[binding.draws->uniform]] = tensor_;
  if (IsTensor(tensor_) && ReadTensor(tensor_, &r->tensors[binding.draws->uniform])) return true;
  PyErr_Format(PyExc_RuntimeError, "%s: torch.rand gave no plain tensor; pass seed=", binding.method.ml_name);
  return false;
}

void DescribeDraw(const OpBinding& binding, Request* r, Descriptions* descriptions) {
  const lz_tensor& rows = r->tensors[binding.draws->rows];
  if (rows.ndim < 1) return;
  lz_tensor& t = r->tensors[binding.draws->uniform];
  const DTypeInfo& dtype = Info(DType::kF64);
  t = {};
  t.shape = descriptions->sizes[binding.draws->uniform];
  t.strides = t.shape + kMaxRank;
  t.ndim = binding.draws->Shape(rows, t.shape);
  t.dtype = {dtype.dlpack_code, dtype.bits, dtype.lanes};
  t.device = rows.device;
  int64_t stride = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    t.strides[d] = stride;
    stride *= t.shape[d];
  }
}

}  // namespace lz::python
