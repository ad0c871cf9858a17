// Python arguments of one call, by position in the contract.
#pragma once

#include "call.h"

namespace lz::door {

struct Arguments {
  PyObject* params[2 * kMaxTensors] = {};  // borrowed; nullptr: left out
  PyObject* layout = nullptr;
  PyObject* kernel = nullptr;
  PyObject* out = nullptr;
  PyObject* generator = nullptr;  // a torch.Generator that draws `uniform`
};

// Sizes and strides of described tensors, which have no memory.
struct Descriptions {
  int64_t sizes[kMaxTensors][2 * kMaxRank];
};

// From a METH_FASTCALL | METH_KEYWORDS call. false: a TypeError is set.
bool ParseArguments(const OpDoor& door, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords, Arguments* a);

enum class Read { kOk, kSlow, kError };
// Tensors into the request. kSlow: something is no plain eager tensor, the slow door decides.
Read ReadTensors(const OpDoor& door, const Arguments& a, Request* request);
// The same for questions about a call: a wanted gradient becomes a flag of the request, and a tensor may be described,
// (dtype name, sizes, strides), which is kept in `descriptions`.
Read ReadTensorsOrDescriptions(const OpDoor& door, const Arguments& a, Request* request, Descriptions* descriptions);
// Scalars, layout, kernel and policy into the request. false: an error is set.
bool ReadScalars(OpDoor& door, const Arguments& a, Request* request);
// Whether a normalized_shape, or nullptr, names another number of axes than one.
bool AreSeveralAxes(PyObject* sizes);
// Whether the call has other axes than the contract's shapes say and `views` may help.
bool NeedsView(const OpDoor& door, const Arguments& arguments, const Request& request);
bool ReadScalar(const OpDoor& door, const Param& param, PyObject* value, lz_scalar* out);
bool ReadPolicy(int64_t* policy);  // of the current context; left as it is where there is none
// Policy of the current context, capture state.
bool ReadContext(Request* request);

}  // namespace lz::door
