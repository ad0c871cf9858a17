// kv.append_paged into 8-bit caches, CPU SIMD: rows are divided by the scales of their heads and rounded once.
//   key_cache, value_cache [blocks, block_size, h_kv, d]  int8|e4m3|e5m2, last dim dense; written in place
//   key, value [n, h_kv, d]  f32|f16|bf16, last dim dense     slots [n] i32|i64     k_scale, v_scale [h_kv] f32
// Workspace: none. Deterministic for distinct slots. A slot outside the cache: nothing is written. Source: own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv/append_paged/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/kv/hwy_codes.h"
#include "kernels/kv/rows.h"
#include "kernels/simd.h"
#include "kernels/spec.h"
#include "ops/kv/append_paged.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::kv_append_paged;

template <class To, class From>
void AppendAll(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const kv::SlotReader slot(t[kSlots]);
  const View k_scale(t[kKScale]), v_scale(t[kVScale]);
  const int64_t row = t[kKeyCache].shape[2] * (t[kKeyCache].shape[3] + t[kValueCache].shape[3]);
  ParallelFor(args, t[kSlots].shape[0], kv::GrainOf(row * int64_t(sizeof(From))), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (slot[i] < 0) continue;
      Append<To, From>(t[kKeyCache], t[kKey], k_scale, slot[i], i);
      Append<To, From>(t[kValueCache], t[kValue], v_scale, slot[i], i);
    }
  });
}

int32_t RunTarget(const lz_kernel_args* args) {
  const DType cache = DTypeOf(args->tensors[kKeyCache]);
  WithFloatType(DTypeOf(args->tensors[kKey]), [&](auto type) {
    using From = decltype(type);
    if (cache == DType::kI8) return AppendAll<Int8, From>(args);
    cache == DType::kF8E4M3 ? AppendAll<E4M3, From>(args) : AppendAll<E5M2, From>(args);
  });
  return 0;
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
using namespace lz::ops::kv_append_paged;
HWY_EXPORT(RunTarget);

int32_t Launch(const lz_kernel_args* args) {
  const kv::SlotReader slot(args->tensors[kSlots]);
  if (!slot.AllBelow(args->axes[kBlocks] * args->axes[kBlockSize])) return ops::kv::kSlotOutOfRange;
  return HWY_DYNAMIC_DISPATCH(RunTarget)(args);
}

constexpr auto kConstraints = std::to_array<Constraint>({{"key.dtype", Rel::kInMask, kF32F16BF16}});
constexpr std::array<std::string_view, 2> kAccepts = {"k_scale", "v_scale"};
constexpr std::array kFamily = {CpuSpec(
    "hwy.kv.append_paged", &Launch,
    {.dtypes = Mask(DType::kI8, DType::kF8E4M3, DType::kF8E5M2), .constraints = kConstraints, .accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
