// Linear in bf16 with AVX512-BF16's dot products for many rows: weights become panels of columns a block at a time. A
// row-major and a column-major kernel, which differ in how they pack.
//   input  [..., k]  bf16, last dim dense     weight [n, k]  bf16, last or first dim dense
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: none. Deterministic. Source: own. VDPBF16PS sums pairs of products in FP32 and treats denormals as zero.
#include "kernels/spec.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include "kernels/gemm/x86_panel_tile.h"
#include "ops/mlp/linear.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear;

template <bool kColumnMajor>
int32_t Launch(const lz_kernel_args* args) {
  using namespace lz::panels;
  const lz_tensor &input = args->tensors[kInput], &weight = args->tensors[kWeight], &bias = args->tensors[kBias];
  const lz_tensor& output = args->tensors[kOutput];
  const RowOffsets in(input), out(output);
  const Weights<uint16_t> weights = {Data<const uint16_t>(weight), weight.strides[kColumnMajor ? 1 : 0], kColumnMajor};
  Multiply<1, uint16_t>(
      args, {NumRows(output), weight.shape[0], weight.shape[1]},
      [&](int64_t row) { return Data<const uint16_t>(input) + in[row]; }, bf16::Packed{&weights}, &bf16::AddPanel,
      [&](int64_t row, int64_t first, int64_t columns, const float* sums, const float*) {
        bf16::Store(sums, Given(bias) ? Data<const uint16_t>(bias) + first : nullptr, columns,
                    Data<uint16_t>(output) + out[row] + first);
      });
  return 0;
}

constexpr auto kRowMajor = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
});
constexpr auto kColumnMajor = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"weight.columns_dense", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
});
// With fewer rows x86.mlp.linear.avx512bf16 is faster, or hwy.mlp.linear.column_major.
constexpr auto kFewRows = std::to_array<Constraint>({{"rows", Rel::kLe, 32}});
constexpr auto kRowMajorPreferences = std::to_array<Preference>({{.when = kFewRows, .priority = kAfterOthers}});
constexpr auto kFewerRows = std::to_array<Constraint>({{"rows", Rel::kLe, 4}});
constexpr auto kColumnMajorPreferences = std::to_array<Preference>({{.when = kFewerRows, .priority = kAfterOthers}});
constexpr std::array kFamily = {
    CpuSpec("x86.mlp.linear.avx512bf16_packed", &Launch<false>,
            {.operation = "mlp.linear",
             .dtypes = Mask(DType::kBF16),
             .constraints = kRowMajor,
             .accepts = kAcceptsAll,
             .priority = 60,
             .preferences = kRowMajorPreferences}),
    CpuSpec("x86.mlp.linear.avx512bf16_column_major", &Launch<true>,
            {.operation = "mlp.linear",
             .dtypes = Mask(DType::kBF16),
             .constraints = kColumnMajor,
             .accepts = kAcceptsAll,
             .strides = Strides::kAny,
             .priority = 85,
             .preferences = kColumnMajorPreferences}),
};
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
