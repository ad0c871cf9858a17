// kv.gather, CPU: one copy of a row per head, or for all heads if cache and result are dense.
//   cache [blocks, block_size, h_kv, d]  any dtype, last dim dense     slots [n] i32|i64
//   output [n, h_kv, d]                  the cache's dtype
// Workspace: none. Deterministic. A slot outside the cache: nothing outside it is read.
#include "ops/kv/gather.h"

#include "core/kernel.h"
#include "kernels/kv/rows.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_gather;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& slots = args->tensors[kSlots];
  const kv::SlotReader slot(slots);
  if (!slot.AllBelow(args->axes[kBlocks] * args->axes[kBlockSize])) return ops::kv::kSlotOutOfRange;
  const kv::PagedRows rows(args->tensors[kCache], args->tensors[kOutput]);
  ParallelFor(args, slots.shape[0], kv::GrainOf(rows.row_bytes()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (slot[i] < 0) {
        rows.Clear(i);
      } else {
        rows.Copy(kv::Direction::kFromCache, slot[i], i);
      }
    }
  });
  return 0;
}

constexpr std::array kFamily = {CpuSpec("cpu.kv.gather", &Launch, {.dtypes = ops::kv::kCacheDTypes})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
