// Linear in bf16 with AVX512-BF16's dot products for many rows: weights become panels of columns a block at a time.
//   input  [..., k]  bf16, last dim dense     weight [n, k]  bf16, last dim dense
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: none. Deterministic. Source: own. VDPBF16PS sums pairs of products in FP32 and treats denormals as zero.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include "kernels/mlp/linear/panels/x86_linear.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) {
  panels::bf16::Linear(args, /*by_columns=*/false);
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
    {"rows", Rel::kGt, 32},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "x86.mlp.linear.avx512bf16_packed",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 60,
     .deterministic = true,
     .launch = &Launch},
});
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
