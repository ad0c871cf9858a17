// Packs float weights into panels of 64 columns.
//   weight [n, k]  f32|bf16, contiguous     panels [n / 64, k, 64]  dtype of weight, contiguous
// Workspace: none. Deterministic. Source: own.
#include "core/kernel.h"
#include "kernels/launch.h"
#include "kernels/spec.h"
#include "ops/mlp/linear/panels/prepack.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_panels_prepack;

template <class T>
void PackPanel(const T* rows, int64_t stride, int64_t k, T* panel) {
  constexpr bool kPairs = sizeof(T) == 2;
  for (int64_t from = 0; from < k; from += kDepth)  // whole cache lines of each row
    for (int64_t column = 0; column < kPanel; ++column)
      for (int64_t i = from; i < from + kDepth; ++i) panel[PlaceInPanel(kPairs, i, column)] = rows[column * stride + i];
}

template <class T>
void Pack(const lz_kernel_args* args) {
  const lz_tensor &weight = args->tensors[kWeight], &out = args->tensors[kPanels];
  const int64_t k = weight.shape[1], stride = weight.strides[0], values = k * kPanel;
  constexpr int64_t kGrain = 16384;  // values: about 10 us
  ParallelFor(args, out.shape[0], kGrain / (values + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      PackPanel(Data<const T>(weight) + p * kPanel * stride, stride, k, Data<T>(out) + p * values);
  });
}

int32_t Launch(const lz_kernel_args* args) {
  DTypeOf(args->tensors[kWeight]) == DType::kF32 ? Pack<uint32_t>(args) : Pack<uint16_t>(args);
  return 0;
}

constexpr std::array kFamily = {CpuSpec("cpu.mlp.linear.panels.prepack", &Launch,
                                        {.dtypes = kPanelTypes, .strides = Strides::kContiguous, .priority = 60})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
