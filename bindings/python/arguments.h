// Python arguments of one call, by position in the contract.
#pragma once

#include "call.h"

namespace lz::door {

struct Arguments {
  PyObject* params[2 * kMaxTensors] = {};  // borrowed; nullptr: left out
  PyObject* layout = nullptr;
  PyObject* kernel = nullptr;
  PyObject* out = nullptr;
};

// From a METH_FASTCALL | METH_KEYWORDS call. false: a TypeError is set.
bool ParseArguments(const OpDoor& door, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords, Arguments* a);

enum class Read { kOk, kSlow, kError };
// Tensors into the request. kSlow: something is no plain eager tensor, the slow door decides. A wanted gradient is a
// flag of the request if `take_gradients`, else slow.
Read ReadTensors(const OpDoor& door, const Arguments& a, Request* request, bool take_gradients = false);
// Scalars, layout, kernel and policy into the request. false: an error is set.
bool ReadScalars(OpDoor& door, const Arguments& a, Request* request);
bool ReadScalar(const OpDoor& door, const Param& param, PyObject* value, lz_scalar* out);
// Policy of the current context, capture state.
bool ReadContext(Request* request);

}  // namespace lz::door
