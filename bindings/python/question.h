// A call that is asked about or prepared instead of run: (callable, args, kwargs[, device]) from Python.
#pragma once

#include <optional>
#include <string>

#include "arguments.h"
#include "call.h"

namespace lz::door {

struct Question {
  OpDoor* door = nullptr;
  Arguments arguments;  // borrowed from the Python arguments
  Descriptions descriptions;
  std::optional<Request> request;  // points into `descriptions`
  std::string device;              // empty: the tensors'
  Proofs proofs = Proofs::kAdmissible;
};

// Read as a call would read it, not prepared yet. false: a Python error is set.
bool ReadQuestion(PyObject* args, Question* question);

}  // namespace lz::door
