#include "outputs.h"

#include "call.h"
#include "pipeline/request_memory.h"
#include "torch_bridge.h"

namespace lz::python {
namespace {

// True if this is the tensor in which output `o` may be computed, element by element.
bool IsInPlace(const Request& r, size_t o, size_t i, const lz_tensor& out) {
  const lz_tensor& t = r.tensors[i];
  const bool may = i < r.op->num_inputs() && r.op->contract().outputs[o].may_alias == r.op->input(i).name;
  const auto first = [](const lz_tensor& one) { return static_cast<char*>(one.data) + one.byte_offset; };
  if (!may || t.ndim != out.ndim || first(t) != first(out)) return false;
  for (int32_t d = 0; d < t.ndim; ++d) {  // the input's axes are in the contract's order
    const int32_t at = r.layout > 0 && r.op->input(i).layout ? r.op->layouts()[size_t(r.layout)][size_t(d)] : d;
    if (t.shape[d] != out.shape[at] || (t.shape[d] > 1 && t.strides[d] != out.strides[at])) return false;
  }
  return true;
}

// Kernels may read an input after they have written part of an output.
bool SharesMemory(const Request& r, size_t o, const lz_tensor& out) {
  for (size_t i = 0; i < r.op->num_inputs() + o; ++i) {
    if (IsInPlace(r, o, i, out)) continue;
    if (r.tensors[i].ndim >= 0 && lz::SharesMemory(out, r.tensors[i])) return true;
  }
  return false;
}

std::string Text(DType dtype, const int64_t* shape, int32_t ndim, lz_device where) {
  std::string text(Info(dtype).name);
  for (int32_t d = 0; d < ndim; ++d) text += (d ? ", " : " [") + std::to_string(shape[d]);
  return text + (ndim ? "] on " : " [] on ") + (IsCpu(where) ? "cpu" : "device " + std::to_string(where.id));
}
std::string Wanted(const Request& r, size_t o) {
  return Text(r.outputs[o].dtype, r.outputs[o].physical, r.outputs[o].ndim, r.where);
}
std::string TypeName(PyObject* object) {
  PyObject* name = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__");
  const char* utf8 = name ? PyUnicode_AsUTF8AndSize(name, nullptr) : nullptr;
  std::string text = utf8 ? utf8 : "another type";
  Py_XDECREF(name);
  return text;
}

// True if the tensor can be output `o` of this call, except for its strides. Otherwise `*got` describes it.
bool Fits(const Request& r, size_t o, PyObject* tensor, lz_tensor* t, std::string* got) {
  if (!IsTensor(tensor) || !ReadTensor(tensor, t)) {
    *got = IsTensor(tensor) ? "a tensor whose memory does not hold its numbers" : TypeName(tensor);
    return false;
  }
  const OutputShape& wanted = r.outputs[o];
  if (DTypeOf(*t) == wanted.dtype && t->device.type == r.where.type && t->device.id == r.where.id &&
      std::equal(t->shape, t->shape + t->ndim, wanted.physical, wanted.physical + wanted.ndim)) {
    return true;
  }
  *got = Text(DTypeOf(*t), t->shape, t->ndim, t->device);
  return false;
}

bool RefuseOut(const Request& r, std::string wanted, std::string got, std::string fix) {
  Raise(Status(StatusCode::kInvalidRequest, {.field = std::string(r.op->name()) + ": out",
                                             .wanted = std::move(wanted),
                                             .got = std::move(got),
                                             .fix = std::move(fix)}));
  return false;
}

// out= must be what the binding would have allocated.
bool BindGivenOutput(Request& r, size_t o, PyObject* out) {
  lz_tensor t;
  std::string got;
  if (!Fits(r, o, out, &t, &got) || !IsDense(t)) {
    if (got.empty()) got = "one with gaps or another order of axes";
    return RefuseOut(r, "a contiguous " + Wanted(r, o), got, "leave it out, or allocate it with torch.empty");
  }
  if (GradEnabled() && RequiresGrad(out)) {
    return RefuseOut(r, "a tensor that needs no gradient", "one that does", "leave it out, or use torch.no_grad()");
  }
  if (SharesMemory(r, o, t)) {
    return RefuseOut(r, "memory of its own", "memory that an input or another output uses",
                     "leave it out, or pass another tensor");
  }
  BindOutput(r, o, static_cast<char*>(t.data) + t.byte_offset);
  return true;
}

// True if out= has one tensor for each output of this call; otherwise an error is set.
bool CountsOutputs(const Request& r, PyObject* out) {
  Py_ssize_t wanted = 0;
  for (size_t o = 0; o < r.op->num_outputs(); ++o) wanted += r.outputs[o].ndim >= 0;
  if (PyTuple_Check(out) ? PyTuple_Size(out) == wanted : wanted == 1) return true;
  const std::string tensors = wanted == 0   ? "none: the operation has no result"
                              : wanted == 1 ? "1 tensor"
                                            : std::to_string(wanted) + " tensors in a tuple";
  Raise(Status(StatusCode::kWrongType,
               {.field = std::string(r.op->name()) + ": out",
                .wanted = tensors,
                .got = PyTuple_Check(out) ? std::to_string(PyTuple_Size(out)) + " in a tuple" : TypeName(out),
                .fix = wanted == 0 ? "leave it out" : "leave it out, or allocate it with torch.empty"}));
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
  if (out && !CountsOutputs(r, out)) return nullptr;
  PyObject* made[kMaxOutputs];
  Py_ssize_t n = 0;
  Py_ssize_t given = 0;
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    const OutputShape& shape = r.outputs[o];
    if (shape.ndim < 0) continue;
    if (out) {
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
    BindOutput(r, o, static_cast<char*>(view.data) + view.byte_offset);
    made[n++] = t;
  }
  if (n == 0) Py_RETURN_NONE;
  if (given > 0 && !BumpVersions(made, n)) {
    for (Py_ssize_t i = 0; i < n; ++i) Py_DecRef(made[i]);
    return nullptr;
  }
  if (n == 1) return made[0];
  PyObject* tuple = PyTuple_New(n);
  for (Py_ssize_t i = 0; i < n; ++i) PyTuple_SetItem(tuple, i, made[i]);
  return tuple;
}

bool MarkWritten(const Request& r, PyObject* const* tensors) {
  PyObject* written[kMaxTensors];
  Py_ssize_t n = 0;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if (r.op->input(i).mutated && r.tensors[i].ndim >= 0) written[n++] = tensors[i];
  }
  return n == 0 || BumpVersions(written, n);
}

Status CheckResults(const KernelEntry& kernel, const Request& r, PyObject* result) {
  const auto fault = [&](std::string wanted, std::string got) {
    return Status(StatusCode::kKernelFailed,
                  {.field = kernel.id,
                   .wanted = std::move(wanted),
                   .got = std::move(got),
                   .fix = "correct the kernel" + (kernel.adapter.empty() ? "" : ", " + kernel.adapter)});
  };
  Py_ssize_t present = 0;
  for (size_t o = 0; o < r.op->num_outputs(); ++o) present += r.outputs[o].ndim >= 0;
  if (present == 0) return result == Py_None ? Status() : fault("None", TypeName(result));
  if (present != 1 && (!PyTuple_Check(result) || PyTuple_Size(result) != present)) {
    return fault("a tuple of " + std::to_string(present) + " tensors",
                 PyTuple_Check(result) ? "one of " + std::to_string(PyTuple_Size(result)) : TypeName(result));
  }
  Py_ssize_t next = 0;
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    if (r.outputs[o].ndim < 0) continue;
    lz_tensor t;
    std::string got;
    if (!Fits(r, o, present == 1 ? result : PyTuple_GetItem(result, next++), &t, &got)) {
      return fault(std::string(r.op->contract().outputs[o].name) + ": " + Wanted(r, o), got);
    }
  }
  return {};
}

bool MakeWorkspace(const KernelEntry& kernel, const Transforms& transforms, Request* r, PyObject** memory) {
  Py_CLEAR(*memory);
  const int64_t bytes = int64_t(WorkspaceBytes(kernel, transforms, *r));
  if (bytes == 0) return true;
  lz_tensor view;
  PyObject* made = NewTensor(&bytes, 1, DType::kU8, r->where);
  if (!made || !ReadTensor(made, &view)) {
    Py_XDECREF(made);
    return false;
  }
  r->workspace = static_cast<char*>(view.data) + view.byte_offset;
  r->workspace_bytes = uint64_t(bytes);
  *memory = made;
  return true;
}

}  // namespace lz::python
