// kv.gather on CUDA: a block a row.
//   cache [blocks, block_size, h_kv, d]  any dtype, last dim dense     slots [n] i32|i64     scale [] [1] [h_kv] f32
//   output [n, h_kv, d]                  the cache's dtype, or f64|f32|f16|bf16
// Workspace: none. Deterministic. Safe in graph captures. The row of a slot outside the cache is zeros: to see it,
// the host would have to wait for the device.
#include "kernels/kv/rows_cuda.h"
#include "kernels/spec.h"
#include "ops/kv/gather.h"

namespace lz {
namespace {
using namespace lz::ops::kv_gather;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  kv::PagedSides sides = {};
  sides.side[0] = kv::SideOf(t[kOutput], t[kCache], &t[kScale]);
  return kv::LaunchPaged<false>(sides, 1, t[kSlots], args->stream);
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {CudaSpec(
    "cuda.kv.gather", &Launch, {.dtypes = ops::kv::kCacheDTypes, .constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
