// Outputs of a call: new tensors, or those of out=.
#pragma once

#include <Python.h>

#include "engine/engine.h"

namespace lz::door {

// Whether every present output's out= fits: shape, dtype, device, contiguous, memory of its own, no gradient wanted.
// Else an error is set.
bool CheckGivenOutputs(Request& r, PyObject* out);
// Outputs of a native plan, bound to the request, as one object or a tuple; nullptr with an error.
PyObject* MakeOutputs(Request& r, PyObject* out);
// What an operation without outputs writes into: autograd is told. false with a Python error.
bool TellWritten(const Request& r, PyObject* const* tensors);
// Whether a host kernel gave what the contract says: as many tensors, their shapes, dtypes and device.
Status CheckResults(const KernelEntry& kernel, const Request& r, PyObject* result);

// The workspace of a plan on a device, from torch's allocator for the current stream: its statistics, its graph pools.
// Sets it in the request; `*memory`: its owner, or nullptr where none is needed. False: a Python error.
bool MakeWorkspace(const Plan& plan, Request* request, PyObject** memory);

}  // namespace lz::door
