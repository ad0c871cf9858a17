// Outputs of a call: new tensors, or those of out=.
#pragma once

#include <Python.h>

#include "engine/engine.h"

namespace lz::python {

// True if out= fits for every present output: shape, dtype, device, contiguous, memory of its own, no gradient
// required. Otherwise an error is set.
bool CheckGivenOutputs(Request& r, PyObject* out);
// Outputs of a native kernel, bound to the request, as one object or a tuple; nullptr with an error.
PyObject* MakeOutputs(Request& r, PyObject* out);
// Reports to autograd the tensors that an operation without outputs writes. Returns false with a Python error.
bool MarkWritten(const Request& r, PyObject* const* tensors);
// Checks that a host kernel returned what the contract says: number of tensors, their shapes, dtypes and device.
Status CheckResults(const KernelEntry& kernel, const Request& r, PyObject* result);

// Allocates a kernel's workspace on a device with torch's allocator for the current stream, so that it is in its
// statistics and graph pools. Sets it in the request; `*memory`: its owner, or nullptr if none is needed. Returns false
// with a Python error.
bool MakeWorkspace(const KernelEntry& kernel, const Transforms& transforms, Request* request, PyObject** memory);

}  // namespace lz::python
