// The binding's access to torch, found at run time: reading tensors, allocating outputs, and whether the fast path may
// be used at all. Nothing here links to torch; the rules and their measurements: docs/design/0002-python-binding.md.
#pragma once

#include <Python.h>

#include "core/dtype.h"
#include "layerzero/c_abi.h"

namespace lz::python {

// True for exactly torch.Tensor or torch.nn.Parameter: in subclasses the pointers may have no meaning.
bool IsTensor(PyObject* object);
bool TorchAttached();

// True if tensors may be read as memory now: no forward-mode AD, dispatch or function mode, functorch transform,
// autocast or tracing. Everything except plain eager or inference mode takes the slow path.
bool ModesAllowFastPath();
bool GradEnabled();
bool RequiresGrad(PyObject* tensor);

// Returns false if it cannot be read as memory (sparse, meta, functional wrapper); no Python error is set.
bool ReadTensor(PyObject* tensor, lz_tensor* out);
bool CurrentStream(lz_device device, void** stream);

// A new torch tensor with row-major strides of `shape`; nullptr with a Python error.
PyObject* NewTensor(const int64_t* shape, int ndim, DType dtype, lz_device device);

// A torch tensor over memory of `owner`, which is released with it; nullptr with a Python error (then the owner is
// released too).
PyObject* TensorOver(const lz_tensor& view, void* owner, void (*release)(void* owner));

// Reports to autograd that the tensors were written; false with a Python error.
bool BumpVersions(PyObject* const* tensors, Py_ssize_t count);

// torch's intra-op threads; run == nullptr if torch is not attached.
lz_parallel TorchParallel();

// Python: attach(torch, states, negatives) -> True if the negative bit is read without calling the tensor. states =
// ((plain included, excluded), (inference included, excluded)) or None; negatives = tensors without and with the bit,
// in two tuples.
PyObject* Attach(PyObject* self, PyObject* args);
// Python: dispatch_key_state() -> (included, excluded) or None.
PyObject* DispatchKeyState(PyObject* self, PyObject* args);

}  // namespace lz::python
