#include "outputs.h"

#include "call.h"
#include "torch_bridge.h"

namespace lz::door {
namespace {

struct Range {
  const char* begin;
  const char* end;
  bool Overlaps(const Range& o) const { return begin < o.end && o.begin < end; }
};
Range BytesOf(const lz_tensor& t) {
  const int64_t item = int64_t{t.dtype.bits} * t.dtype.lanes / 8;
  const char* base = static_cast<const char*>(t.data) + t.byte_offset;
  int64_t low = 0, high = item;
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return {base, base};
    (t.strides[d] < 0 ? low : high) += (t.shape[d] - 1) * t.strides[d] * item;
  }
  return {base + low, base + high};
}

// Kernels may read an input after they have written part of an output.
bool SharesMemory(const Request& r, size_t o, const lz_tensor& out) {
  const Range range = BytesOf(out);
  for (size_t i = 0; i < r.op->num_inputs() + o; ++i) {
    if (r.tensors[i].ndim >= 0 && range.Overlaps(BytesOf(r.tensors[i]))) return true;
  }
  return false;
}

// out= must be what the door would have allocated.
bool BindGivenOutput(Request& r, size_t o, PyObject* out) {
  const OutputShape& shape = r.outputs[o];
  lz_tensor t;
  bool fits = IsTensor(out) && ReadTensor(out, &t) && t.ndim == shape.ndim && DTypeOf(t) == shape.dtype &&
              t.device.type == r.where.type && t.device.id == r.where.id;
  int64_t expected = 1;
  for (int32_t d = shape.ndim - 1; fits && d >= 0; --d) {
    fits = t.shape[d] == shape.physical[d] && (t.shape[d] == 1 || t.strides[d] == expected);
    expected *= shape.physical[d];
  }
  if (!fits) {
    Raise(Status(StatusCode::kInvalidRequest, {.field = std::string(r.op->name()) + ": out",
                                               .wanted = "a contiguous tensor of the output's shape, dtype and device",
                                               .got = "another",
                                               .fix = "leave it out, or allocate it with torch.empty in that shape"}));
    return false;
  }
  if (SharesMemory(r, o, t)) {
    Raise(Status(StatusCode::kInvalidRequest, {.field = std::string(r.op->name()) + ": out",
                                               .wanted = "memory of its own",
                                               .got = "memory that an input or another output uses",
                                               .fix = "leave it out, or pass another tensor"}));
    return false;
  }
  Engine::BindOutput(r, o, static_cast<char*>(t.data) + t.byte_offset);
  return true;
}

// Whether out= holds one tensor for each output that this call has; else an error is set.
bool CountsOutputs(const Request& r, PyObject* out) {
  Py_ssize_t wanted = 0;
  for (size_t o = 0; o < r.op->num_outputs(); ++o) wanted += r.outputs[o].ndim >= 0;
  if (PyTuple_Check(out) ? PyTuple_Size(out) == wanted : wanted == 1) return true;
  PyErr_Format(PyExc_TypeError, "out: wanted %zd tensor%s, got another number", wanted,
               wanted == 1 ? "" : "s in a tuple");
  return false;
}

}  // namespace

bool CheckGivenOutputs(Request& r, PyObject* out) {
  if (!CountsOutputs(r, out)) return false;
  Py_ssize_t given = 0;
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    if (r.outputs[o].ndim < 0) continue;
    if (!BindGivenOutput(r, o, PyTuple_Check(out) ? PyTuple_GetItem(out, given) : out)) return false;
    ++given;
  }
  return true;
}

PyObject* MakeOutputs(Request& r, PyObject* out) {
  if (out && out != Py_None && !CountsOutputs(r, out)) return nullptr;
  PyObject* made[kMaxOutputs];
  Py_ssize_t n = 0;
  Py_ssize_t given = 0;
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    const OutputShape& shape = r.outputs[o];
    if (shape.ndim < 0) continue;
    if (out && out != Py_None) {
      PyObject* mine = PyTuple_Check(out) ? PyTuple_GetItem(out, given) : out;
      if (!BindGivenOutput(r, o, mine)) {
        for (Py_ssize_t i = 0; i < n; ++i) Py_DecRef(made[i]);
        return nullptr;
      }
      ++given;
      Py_IncRef(mine);
      made[n++] = mine;
      continue;
    }
    PyObject* t = NewTensor(shape.physical, shape.ndim, shape.dtype, r.where);
    lz_tensor view;
    if (!t || !ReadTensor(t, &view)) {
      Py_XDECREF(t);
      for (Py_ssize_t i = 0; i < n; ++i) Py_DecRef(made[i]);
      return nullptr;
    }
    Engine::BindOutput(r, o, static_cast<char*>(view.data) + view.byte_offset);
    made[n++] = t;
  }
  if (n == 0) Py_RETURN_NONE;
  if (n == 1) return made[0];
  PyObject* tuple = PyTuple_New(n);
  for (Py_ssize_t i = 0; i < n; ++i) PyTuple_SetItem(tuple, i, made[i]);
  return tuple;
}

}  // namespace lz::door
