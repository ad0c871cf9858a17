// Rotated columns and the tables' row of a position, shared by the references and the kernels of rotary embeddings.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "layerzero/c_abi.h"
#include "ops/posenc/rope.h"

namespace lz::ops::posenc_rope {

// Pair i of r rotated columns.
struct Pair {
  int64_t j, k;    // columns
  int64_t tj, tk;  // their columns in the tables
};

inline Pair PairAt(int64_t i, int64_t rotary_dim, int64_t width, bool interleaved) {
  Pair p{.j = i, .k = i + rotary_dim / 2};
  if (interleaved) p = {.j = 2 * i, .k = 2 * i + 1};
  const bool per_column = width == rotary_dim;
  p.tj = per_column ? p.j : i;
  p.tk = per_column ? p.k : i;
  return p;
}

class TableRows {
 public:
  explicit TableRows(const lz_kernel_args* args)
      : ids_(args->tensors[kPositionIds]),
        num_positions_(args->tensors[kCos].shape[0]),
        batch_(args->tensors[kInput].shape[kB]),
        sequence_(args->tensors[kInput].shape[kS]) {}

  // Offset in elements of the row of `table` (cos or sin) for position (b, s).
  int64_t Offset(const lz_tensor& table, int64_t b, int64_t s) const {
    if (ids_.ndim >= 0) return Id(b, s) * table.strides[0];
    const bool batched = table.ndim == 3 && table.shape[0] != 1;
    return (batched ? b * table.strides[0] : 0) + s * table.strides[table.ndim - 2];
  }

  bool AllInRange() const {
    if (ids_.ndim < 0) return true;
    const int64_t rows = ids_.ndim == 2 && ids_.shape[0] != 1 ? batch_ : 1;
    for (int64_t b = 0; b < rows; ++b) {
      for (int64_t s = 0; s < sequence_; ++s) {
        const int64_t id = Id(b, s);
        if (id < 0 || id >= num_positions_) return false;
      }
    }
    return true;
  }

 private:
  int64_t Id(int64_t b, int64_t s) const {
    const bool batched = ids_.ndim == 2 && ids_.shape[0] != 1;
    const int64_t at = (batched ? b * ids_.strides[0] : 0) + s * ids_.strides[ids_.ndim - 1];
    const char* base = static_cast<const char*>(ids_.data) + ids_.byte_offset;
    if (DTypeOf(ids_) == DType::kI32) return reinterpret_cast<const int32_t*>(base)[at];
    return reinterpret_cast<const int64_t*>(base)[at];
  }

  const lz_tensor& ids_;
  int64_t num_positions_, batch_, sequence_;
};

}  // namespace lz::ops::posenc_rope
