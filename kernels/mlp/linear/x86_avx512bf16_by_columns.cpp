// Linear in bf16 with AVX512-BF16's dot products and column-major weights, for more than a few rows.
//   input  [..., k]  bf16, last dim dense     weight [n, k]  bf16, first dim dense
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: none; blocks of weights become panels of pairs (panels/blocks.h). Deterministic. Source: own. VDPBF16PS
// sums pairs of products in FP32 and treats denormals as zero.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include "kernels/mlp/linear/panels/x86_linear.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) {
  panels::bf16::Linear(args, /*by_columns=*/true);
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
    {"rows", Rel::kGt, 4},  // fewer rows: hwy.mlp.linear.by_columns
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"weight.columns_dense", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "x86.mlp.linear.avx512bf16_by_columns",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 85,
     .deterministic = true,
     .launch = &Launch},
});
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
