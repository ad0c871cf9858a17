// A call that is inspected or prepared instead of run: (callable, args, kwargs[, device]) from Python.
#pragma once

#include <optional>
#include <string>

#include "arguments.h"
#include "call.h"

namespace lz::python {

struct ExplainRequest {
  OpBinding* binding = nullptr;
  Arguments arguments;  // borrowed from the Python arguments
  Descriptions descriptions;
  std::optional<Request> request;  // points into `descriptions`
  std::string device;              // empty: the tensors'
  Proofs proofs = Proofs::kAdmissible;
  bool capturing = false;  // as in a CUDA graph capture, whatever the stream does
};

// Reads it as a call would, without preparing. Returns false with a Python error set.
bool ReadExplainRequest(PyObject* args, ExplainRequest* request);

}  // namespace lz::python
