// Linear for many rows, CPU SIMD: the input is packed in strips, so that caches see dense blocks whatever the strides.
//   input  [..., k]  f32|bf16|f16, last dim dense     weight [n, k]  dtype of input, last dim dense
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: at most 192 rows of input as f32. Deterministic. Source: own. FP32 sums over k in order, in blocks of 256.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/hwy_gemm_packed.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/mlp/linear/hwy_strips.h"
#include "ops/mlp/linear.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear;

template <class T>
struct Rows {
  const T* data;
  int64_t stride;

  void Decode(int64_t row, int64_t from, int64_t size, float* out) const {
    strips::Widen(data + row * stride + from, size, out);
  }
};

uint64_t Workspace(const lz_kernel_args* args) {
  return strips::PackedBytes(NumRows(args->tensors[kOutput]), args->tensors[kWeight].shape[1]);
}

int32_t Launch(const lz_kernel_args* args) {
  if (args->workspace_bytes < Workspace(args)) return 1;
  const lz_tensor& weight = args->tensors[kWeight];
  WithFloatType(DTypeOf(args->tensors[kInput]), [&](auto type) {
    using T = decltype(type);
    const Rows<T> rows{Data<const T>(weight), weight.strides[0]};
    strips::Run<T>(args, args->tensors[kInput], rows, args->tensors[kBias], args->tensors[kOutput]);
  });
  return 0;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
HWY_EXPORT(Workspace);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }
uint64_t WorkspaceOfBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Workspace)(args); }

constexpr auto kConstraints = std::to_array<Constraint>({
    {"rows", Rel::kGt, 16},  // fewer rows: hwy.mlp.linear.gemm
});
// One kernel, two ranks: a CPU with dot products in bf16 has faster kernels for it (x86_avx512bf16_packed.cpp).
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.gemm_packed",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kF32, DType::kF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 61,
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &WorkspaceOfBest},
    {.id = "hwy.mlp.linear.gemm_packed_bf16",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 41,
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &WorkspaceOfBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
