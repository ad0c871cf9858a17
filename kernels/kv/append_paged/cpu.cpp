// kv.append_paged, CPU: one copy of a row per head, or for all heads if rows and cache are dense.
//   key_cache, value_cache [blocks, block_size, h_kv, d]  any dtype, last dim dense; written in place
//   key, value [n, h_kv, d]                               the caches' dtype, last dim dense     slots [n] i32|i64
// Workspace: none. Deterministic for distinct slots. A slot outside the cache: nothing is written.
#include "ops/kv/append_paged.h"

#include "core/kernel.h"
#include "kernels/kv/rows.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_append_paged;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& slots = args->tensors[kSlots];
  const kv::SlotReader slot(slots);
  if (!slot.AllBelow(args->axes[kBlocks] * args->axes[kBlockSize])) return ops::kv::kSlotOutOfRange;
  const kv::PagedRows keys(args->tensors[kKeyCache], args->tensors[kKey]);
  const kv::PagedRows values(args->tensors[kValueCache], args->tensors[kValue]);
  ParallelFor(args, slots.shape[0], kv::GrainOf(keys.row_bytes() + values.row_bytes()),
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  if (slot[i] < 0) continue;
                  keys.Copy(kv::Direction::kIntoCache, slot[i], i);
                  values.Copy(kv::Direction::kIntoCache, slot[i], i);
                }
              });
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({{"key.same_dtype", Rel::kEq, 1}});
constexpr std::array kFamily = {
    CpuSpec("cpu.kv.append_paged", &Launch, {.dtypes = kFloats, .constraints = kConstraints})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
