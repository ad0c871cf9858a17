// One part of attention's loop, for the dtype of keys and values that the including file names:
//   LZ_ATTENTION_PART  the function of kernels/attention/problem.h that this part defines
//   LZ_ATTENTION_LOOP  its return value, from `p` and `args`
// No include guard: Highway includes this file once for each instruction set, so it defines functions on purpose.
// NOLINTBEGIN(misc-definitions-in-headers)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/parts/part.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/attention/loop.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using attn::RunAll;
int32_t RunPart(const attention::Problem& p, const lz_kernel_args* args) { return LZ_ATTENTION_LOOP; }
}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz::attention {
HWY_EXPORT(RunPart);
int32_t LZ_ATTENTION_PART(const Problem& p, const lz_kernel_args* args) {
  return HWY_DYNAMIC_DISPATCH(RunPart)(p, args);
}
}  // namespace lz::attention
#endif  // HWY_ONCE
// NOLINTEND(misc-definitions-in-headers)
