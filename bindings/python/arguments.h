// Python arguments of one call, by position in the contract.
#pragma once

#include "call.h"

namespace lz::python {

struct Arguments {
  PyObject* params[2 * kMaxTensors] = {};  // borrowed; nullptr: omitted
  PyObject* layout = nullptr;
  PyObject* kernel = nullptr;
  PyObject* out = nullptr;
  PyObject* generator = nullptr;  // a torch.Generator that draws `uniform`
};

// Sizes and strides of described tensors, which have no memory.
struct Descriptions {
  int64_t sizes[kMaxTensors][2 * kMaxRank];
};

// Parses a METH_FASTCALL | METH_KEYWORDS call. Returns false with a TypeError set.
bool ParseArguments(const OpBinding& binding, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords,
                    Arguments* a);

enum class Read { kOk, kSlow, kError };
// Reads tensors into the request. kSlow: some argument is not a plain eager tensor, and the slow path decides.
Read ReadTensors(const OpBinding& binding, const Arguments& a, Request* request);
// The same for inspecting a call: a required gradient becomes a flag of the request, and a tensor may be described as
// (dtype name, sizes, strides), which is kept in `descriptions`.
Read ReadTensorsOrDescriptions(const OpBinding& binding, const Arguments& a, Request* request,
                               Descriptions* descriptions);
// Reads scalars, layout, kernel and policy into the request. Returns false with an error set.
bool ReadScalars(OpBinding& binding, const Arguments& a, Request* request);
// Whether a normalized_shape, or nullptr, names another number of axes than one.
bool AreSeveralAxes(PyObject* sizes);
// Whether the call has other axes than the contract's shapes say and `views` may help.
bool NeedsView(const OpBinding& binding, const Arguments& arguments, const Request& request);
bool ReadScalar(const OpBinding& binding, const Param& param, PyObject* value, lz_scalar* out);
bool ReadPolicy(int64_t* policy);  // policy of the current context; unchanged if there is none
// Reads the policy of the current context and the capture state.
bool ReadContext(Request* request);

}  // namespace lz::python
