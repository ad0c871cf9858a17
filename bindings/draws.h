// The parameters of an operation that are random numbers, and the shape of `uniform` when the binding draws it.
#pragma once

#include <cstdint>
#include <optional>

#include "registry/operation.h"

namespace lz {

struct DrawParams {
  size_t seed, offset;  // index of the scalar
  size_t uniform;       // index of the input: the random numbers of each row
  size_t rows;          // index of the input: the tensor (..., vocab) that has the rows
  bool pairs;           // two random numbers per row

  // The shape of `uniform` for this tensor of rows; returns its rank.
  int32_t Shape(const lz_tensor& of, int64_t* shape) const {
    int32_t ndim = 0;
    for (; ndim + 1 < of.ndim; ++ndim) shape[ndim] = of.shape[ndim];
    if (pairs) shape[ndim++] = 2;
    return ndim;
  }
};

// nullopt if the operation takes no random numbers.
inline std::optional<DrawParams> DrawParamsOf(const Operation& op) {
  DrawParams found{};
  int parts = 0;
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    if (op.scalar(i).name == "seed") found.seed = i, ++parts;
    if (op.scalar(i).name == "offset") found.offset = i, ++parts;
  }
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const Param& p = op.input(i);
    if (p.name == "uniform") found.uniform = i, found.pairs = p.shape.ends_with('2'), ++parts;
    if (p.shape.ends_with("vocab")) found.rows = i;
  }
  if (parts != 3) return std::nullopt;
  return found;
}

}  // namespace lz
