// The loop of attention over keys and values in FP8 with scales. A file of its own: each takes half a minute to
// compile.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/parts/f8.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/attention/loop.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
int32_t RunPart(const attention::Problem& p, const lz_kernel_args* args) {
  return p.cache == DType::kF8E4M3 ? attn::RunAll<attn::F8E4M3>(p, args) : attn::RunAll<attn::F8E5M2>(p, args);
}
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz::attention {
HWY_EXPORT(RunPart);
int32_t RunF8(const Problem& p, const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(RunPart)(p, args); }
}  // namespace lz::attention
#endif  // HWY_ONCE
