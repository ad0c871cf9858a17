// What the door knows of torch, found at run time: reading tensors, allocating outputs, and whether the fast door may
// be used at all. Nothing here links to torch; the rules and their measurements: docs/design/0002-python-door.md.
#pragma once

#include <Python.h>

#include "core/dtype.h"
#include "layerzero/c_abi.h"

namespace lz::door {

// Exactly torch.Tensor or torch.nn.Parameter: subclasses have pointers without meaning.
bool IsTensor(PyObject* object);
bool TorchAttached();

// May tensors be read as memory now? No forward-mode AD, no dispatch or function mode, functorch transform, autocast or
// tracing: anything but plain eager or inference mode takes the slow door.
bool ModesAllowFastDoor();
bool GradEnabled();
bool RequiresGrad(PyObject* tensor);

// false: not readable as memory (sparse, meta, functional wrapper); no Python error is set.
bool ReadTensor(PyObject* tensor, lz_tensor* out);
bool CurrentStream(lz_device device, void** stream);

// A new torch tensor with row-major strides of `shape`; nullptr with a Python error.
PyObject* NewTensor(const int64_t* shape, int ndim, DType dtype, lz_device device);

// A torch tensor over memory that belongs to `owner`, which is released with it; nullptr with a Python error (then the
// owner is released too).
PyObject* TensorOver(const lz_tensor& view, void* owner, void (*release)(void* owner));

// Says to autograd that the tensors were written; false with a Python error.
bool AdvanceVersions(PyObject* const* tensors, Py_ssize_t count);

// torch's intra-op threads; run == nullptr when torch is not attached.
lz_parallel TorchParallel();

// Python: attach(torch, states, negatives) -> whether the negative bit is read without asking. states = ((plain
// included, excluded), (inference included, excluded)) or None; negatives = tensors without and with the bit, in two
// tuples.
PyObject* Attach(PyObject* self, PyObject* args);
// Python: dispatch_key_state() -> (included, excluded) or None.
PyObject* DispatchKeyState(PyObject* self, PyObject* args);

}  // namespace lz::door
