// kv.block_table_update, CPU: every triple is checked, then all are written in order.
//   block_tables [b, max_blocks] i32|i64, last dim dense; written in place     updates [u, 3] i32|i64, last dim dense
// Workspace: none. Deterministic. A place outside the table, or a block that the table's dtype cannot represent:
// nothing is written.
#include "ops/kv/block_table_update.h"

#include "core/dtype.h"
#include "core/kernel.h"
#include "kernels/launch.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_block_table_update;

template <class Int, class Block>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor &tables = args->tensors[kBlockTables], &updates = args->tensors[kUpdates];
  const auto triple = [&](int64_t i) { return Data<const Int>(updates) + i * updates.strides[0]; };
  for (int64_t i = 0; i < updates.shape[0]; ++i) {
    const Int* t = triple(i);
    const bool inside = t[0] >= 0 && t[0] < tables.shape[0] && t[1] >= 0 && t[1] < tables.shape[1];
    if (!inside || int64_t{t[2]} != int64_t{Block(t[2])}) return LZ_LAUNCH_INVALID_INDEX;
  }
  for (int64_t i = 0; i < updates.shape[0]; ++i) {
    const Int* t = triple(i);
    Data<Block>(tables)[t[0] * tables.strides[0] + t[1]] = Block(t[2]);
  }
  return LZ_LAUNCH_DONE;
}

int32_t Launch(const lz_kernel_args* args) {
  const bool narrow = DTypeOf(args->tensors[kUpdates]) == DType::kI32;
  if (DTypeOf(args->tensors[kBlockTables]) == DType::kI64) {
    return narrow ? Run<int32_t, int64_t>(args) : Run<int64_t, int64_t>(args);
  }
  return narrow ? Run<int32_t, int32_t>(args) : Run<int64_t, int32_t>(args);
}

constexpr std::array kFamily = {CpuSpec("cpu.kv.block_table_update", &Launch, {.dtypes = kIndices})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
