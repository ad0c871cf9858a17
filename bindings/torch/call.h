// A call of an operator: the dispatcher's stack in, the chosen kernel run, the outputs on the stack.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "schema.h"

namespace lz::torch_ops {

// Takes the inputs off `stack` and puts the outputs there. `index`: the operator's, below the number of operators;
// every thread keeps the last choice of each. Throws std::runtime_error.
void CallBoxed(const TorchOp& torch_op, size_t index, StableIValue* stack);

}  // namespace lz::torch_ops
