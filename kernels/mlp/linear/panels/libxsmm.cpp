// Linear with weights in panels of 64 columns by libxsmm 1.17 (libxsmm.h).
//   input  [..., k]  f32|bf16 contiguous          panels [n / 64, k, 64]  dtype of input
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: none. Source: libxsmm. FP32 sums over k in order. Functions are compiled for up to 64 numbers of rows.
#include "kernels/gemm/libxsmm.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "core/kernel.h"
#include "kernels/launch.h"
#include "ops/mlp/linear/panels.h"
#include "platform/device.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_linear_panels;

constexpr int64_t kRows = 64;  // rows of one product

template <class T>
bool RunPanel(const lz_kernel_args* args, int64_t panel) {
  const lz_tensor &panels = args->tensors[kPanels], &bias = args->tensors[kBias], &output = args->tensors[kOutput];
  const int64_t k = panels.shape[1], n = panels.shape[0] * kPanel, rows = NumRows(output);
  const T* w = Data<const T>(panels) + panel * k * kPanel;
  for (int64_t row = 0; row < rows; row += kRows) {
    const libxsmm::Product product = {.rows = int(std::min(kRows, rows - row)),
                                      .columns = int(kPanel),
                                      .k = int(k),
                                      .ld_x = int(k),
                                      .ld_w = int(kPanel),
                                      .ld_out = int(n),
                                      .add = Given(bias)};
    const T* x = Data<const T>(args->tensors[kInput]) + row * k;
    T* out = Data<T>(output) + row * n + panel * kPanel;
    for (int64_t r = 0; Given(bias) && r < product.rows; ++r)
      std::memcpy(out + r * n, Data<const T>(bias) + panel * kPanel, kPanel * sizeof(T));
    if (!libxsmm::Multiply(product, x, w, out)) return false;
  }
  return true;
}

template <class T>
int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& panels = args->tensors[kPanels];
  constexpr int64_t kGrain = 64 * 4096;  // products: about 5 us
  const int64_t products = NumRows(args->tensors[kOutput]) * panels.shape[1] * kPanel;
  std::atomic<bool> failed = false;
  ParallelFor(args, panels.shape[0], kGrain / (products + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      if (!RunPanel<T>(args, panel)) failed = true;
    }
  });
  return failed ? 1 : 0;
}

constexpr int64_t kMaxSize = std::numeric_limits<int>::max();
constexpr auto kF32Constraints =
    std::to_array<Constraint>({{"k", Rel::kGt, 0}, {"k", Rel::kLe, kMaxSize}, {"p", Rel::kLe, kMaxSize / kPanel}});
constexpr auto kBF16Constraints = std::to_array<Constraint>({
    {"k", Rel::kGt, 0},
    {"k", Rel::kLe, kMaxSize},
    {"p", Rel::kLe, kMaxSize / kPanel},
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "libxsmm.mlp.linear.panels",
     .operation = "mlp.linear.panels",
     .dtypes = Mask(DType::kF32),
     .constraints = kF32Constraints,
     .accepts = kAcceptsAll,
     .priority = kLibraryPriority,
     .launch = &Launch<float>,
     .open = &libxsmm::Open},
    {.id = "libxsmm.mlp.linear.panels_bf16",
     .operation = "mlp.linear.panels",
     .dtypes = Mask(DType::kBF16),
     .constraints = kBF16Constraints,
     .accepts = kAcceptsAll,
     .priority = kLibraryPriority,
     .launch = &Launch<uint16_t>,
     .open = &libxsmm::Open},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
