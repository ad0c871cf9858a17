// Reference of kv.block_table_update: any strides.
#include "ops/kv/block_table_update.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_block_table_update;

int32_t Launch(const lz_kernel_args* args) {
  const View tables(args->tensors[kBlockTables]), updates(args->tensors[kUpdates]);
  for (int64_t i = 0; i < updates.size(0); ++i) {
    const int64_t row = updates.GetInt({i, 0}), at = updates.GetInt({i, 1}), block = updates.GetInt({i, 2});
    const bool inside = row >= 0 && row < tables.size(0) && at >= 0 && at < tables.size(1);
    const bool held = tables.dtype() == DType::kI64 || block == int64_t{int32_t(block)};
    if (!inside || !held) return LZ_LAUNCH_INVALID_INDEX;
  }
  for (int64_t i = 0; i < updates.size(0); ++i) {
    tables.SetInt({updates.GetInt({i, 0}), updates.GetInt({i, 1})}, updates.GetInt({i, 2}));
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.kv.block_table_update", &Launch, kIndices)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
