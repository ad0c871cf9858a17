// One torch operator: a contract, and which of its conditional outputs it has. A torch schema has a fixed number of
// outputs, so a contract whose output is conditional becomes two overloads: attention and attention.lse.
#pragma once

#include <string>
#include <vector>

#include "bindings/draws.h"
#include "engine/engine.h"

namespace lz::torch_ops {

struct TorchOp {
  const Operation* op = nullptr;
  std::string overload;            // empty: the default one
  bool condition = false;          // what this overload fixes for the outputs' condition (return_lse)
  std::vector<uint8_t> arguments;  // contract parameters in the schema's order; the layout follows them
  bool layout = false;             // the last argument is the layout's name
  size_t num_outputs = 0;
  std::optional<DrawParams> draws;  // which arguments are random numbers

  std::string Name() const;    // "attention.lse"
  std::string Schema() const;  // "attention.lse(Tensor query, ..., *, float? scale=None) -> (Tensor, Tensor)"
};

// Every operator of the engine's contracts, in their order.
std::vector<TorchOp> TorchOps(const Engine& engine);

}  // namespace lz::torch_ops
