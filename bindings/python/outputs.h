// Outputs of a call: new tensors, or those of out=.
#pragma once

#include <Python.h>

#include "engine/engine.h"

namespace lz::door {

// Whether every present output's out= fits: shape, dtype, device, contiguous, memory of its own. Else an error is set.
bool CheckGivenOutputs(Request& r, PyObject* out);
// Outputs of a native plan, bound to the request, as one object or a tuple; nullptr with an error.
PyObject* MakeOutputs(Request& r, PyObject* out);

}  // namespace lz::door
