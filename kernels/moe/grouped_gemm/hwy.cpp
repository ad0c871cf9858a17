// Matrix products of ranges of rows, CPU SIMD: the register tile of mlp.linear for each expert.
//   input [rows, d]  f32|bf16     weight [experts, n, d], bias [experts, n]  dtype of input     offsets [experts + 1]
//   output [rows, n]; last axes dense
// Workspace: a pointer for each row. Deterministic. Source: own. FP32 sums as in hwy.mlp.linear.gemm.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/grouped_gemm/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/gemm/feed_forward.h"
#include "kernels/spec.h"
#include "ops/moe/grouped_gemm.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::moe_grouped_gemm;

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &w = args->tensors[kWeight], &out = args->tensors[kOutput];
  const View offsets(args->tensors[kOffsets]);
  const int64_t rows = out.shape[0], n = out.shape[1], experts = w.shape[0];
  for (int64_t e = 0, last = 0; e <= experts; ++e) {
    const int64_t offset = offsets.GetInt({e});
    if (offset < last || offset > rows) return LZ_LAUNCH_INVALID_DATA;
    last = offset;
  }
  const T** pointers = static_cast<const T**>(args->workspace);
  for (int64_t r = 0; r < rows; ++r) pointers[r] = Data<const T>(x) + r * x.strides[0];
  const auto row_of = [&](int64_t r) { return Data<T>(out) + r * out.strides[0]; };
  for (int64_t r = 0; r < rows; ++r) {
    if (r < offsets.GetInt({0}) || r >= offsets.GetInt({experts})) std::fill_n(row_of(r), n, T{});
  }
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = offsets.GetInt({e}), count = offsets.GetInt({e + 1}) - begin;
    if (count == 0) continue;
    const Product<T> product(w, args->tensors[kBias], e, 0, 1, n);
    ForBlocks<T>(args, count, n, product.k, [&](int64_t row, int height, int64_t first, int64_t columns) {
      BlockSums sums;
      product.Block(pointers + begin + row, nullptr, height, first, columns, sums);
      for (int m = 0; m < height; ++m) {
        Tile<T>::Store(sums + m * gemm::kBlockColumns, nullptr, columns, row_of(begin + row + m) + first);
      }
    });
  }
  return 0;
}

int32_t Launch(const lz_kernel_args* args) {
  return DTypeOf(args->tensors[kInput]) == DType::kF32 ? Run<float>(args) : Run<BF16>(args);
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

uint64_t Workspace(const lz_kernel_args* args) {
  return uint64_t(args->tensors[ops::moe_grouped_gemm::kInput].shape[0]) * sizeof(void*);
}

constexpr std::array kFamily = {
    CpuSpec("hwy.moe.grouped_gemm", &LaunchBest,
            {.dtypes = kF32BF16, .accepts = kAcceptsAll, .priority = 60, .workspace = &Workspace})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
