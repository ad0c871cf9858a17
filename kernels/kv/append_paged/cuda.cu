// kv.append_paged on CUDA: keys and values by one launch, a block a row.
//   caches [blocks, block_size, h_kv, d]  any dtype, last dim dense     key, value [n, h_kv, d]  f64|f32|f16|bf16
//   slots [n] i32|i64     k_scale, v_scale [] [1] [h_kv] f32, optional
// Writes the caches. Workspace: none. Deterministic where slots differ. Safe in graph captures. A row whose slot is
// outside the cache is left out: the host cannot see it without waiting for the device.
#include "kernels/kv/rows_cuda.h"
#include "kernels/spec.h"
#include "ops/kv/append_paged.h"

namespace lz {
namespace {
using namespace lz::ops::kv_append_paged;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  kv::PagedSides sides = {};
  sides.side[0] = kv::SideOf(t[kKey], t[kKeyCache], &t[kKScale]);
  sides.side[1] = kv::SideOf(t[kValue], t[kValueCache], &t[kVScale]);
  return kv::LaunchPaged<true>(sides, 2, t[kSlots], args->stream);
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.kv.append_paged", &Launch,
             {.dtypes = ops::kv::kCacheDTypes, .constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
