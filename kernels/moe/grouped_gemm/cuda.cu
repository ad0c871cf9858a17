// Products of ranges of rows on CUDA, each with the weights of its expert; no offset is read by the host.
//   input [rows, d], weight [experts, n, d], bias [experts, n]  f32|f16|bf16     offsets [experts + 1] i32|i64
//   output [rows, n] dtype of input
// By products of matrices in 16 bits (expert_tiles_cuda.h), where rows begin at multiples of 16 bytes; in FP32 any
// strides (expert_sums_cuda.h). Offsets are limited to the rows; where they decrease, rows of the output hold anything:
// to see it, the host would have to wait for the device. Workspace: none. Deterministic. Safe in graph captures.
#include "kernels/joined.h"
#include "kernels/moe/expert_sums_cuda.h"
#include "kernels/moe/expert_tiles_cuda.h"
#include "kernels/spec.h"
#include "ops/moe/grouped_gemm.h"

namespace lz {
namespace {
using namespace lz::ops::moe_grouped_gemm;

experts::Product ProductOf(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &input = t[kInput], &offsets = t[kOffsets];
  experts::Product p = {.x = Data<void>(input), .x_rows = DeviceRows(input), .x_column = input.strides[1]};
  p.offsets = Data<void>(offsets), p.wide_offsets = DTypeOf(offsets) == DType::kI64;
  p.offsets_stride = offsets.strides[0];
  p.rows = input.shape[0];
  p.experts = int32_t(t[kWeight].shape[0]), p.n = int32_t(t[kWeight].shape[1]), p.k = int32_t(input.shape[1]);
  p.side[0] = experts::SideOf(t[kWeight], t[kBias]);
  return p;
}
template <class T>
experts::ToOutput<T> EndOf(const lz_kernel_args* args) {
  const lz_tensor& out = args->tensors[kOutput];
  const bool pairs = out.shape[1] % 2 == 0 && reinterpret_cast<uintptr_t>(Data<T>(out)) % (2 * sizeof(T)) == 0;
  return {.out = Data<T>(out), .pairs = pairs};
}

int32_t LaunchSums(const lz_kernel_args* args) {
  return WithCudaFloat(DTypeOf(args->tensors[kInput]), [&]<class T>(T) {
    return experts::LaunchSums<T, T, 1>(ProductOf(args), EndOf<T>(args), args->stream);
  });
}
int32_t LaunchTiles(const lz_kernel_args* args) {
  const auto with = [&]<class T>(T) {
    return experts::LaunchTiles<T, 1, false>(ProductOf(args), EndOf<T>(args), args->stream);
  };
  return DTypeOf(args->tensors[kInput]) == DType::kF16 ? with(__half()) : with(__nv_bfloat16());
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"rows", Rel::kLe, int64_t{1} << 30},
    {"n", Rel::kLe, int64_t{1} << 21},
    {"d", Rel::kLe, int64_t{1} << 30},
    {"experts", Rel::kLe, 4096},  // a block looks for its rows in all of them
});
constexpr auto kTileConstraints = Joined(kConstraints, {
                                                           {"d", Rel::kMultipleOf, 8},
                                                           {"input.alignment", Rel::kGe, 4},
                                                           {"weight.alignment", Rel::kGe, 4},
                                                       });
constexpr std::array kFamily = {
    CudaSpec("cuda.moe.grouped_gemm", &LaunchTiles,
             {.dtypes = Mask(DType::kF16, DType::kBF16),
              .constraints = kTileConstraints,
              .accepts = kAcceptsAll,
              // It ranks before torch's row, because it takes 0.52 of that row's time:
              // bench/results/no-harm-kernels-experts-nvidia-h200.json.
              .priority = 40}),
    CudaSpec("cuda.moe.grouped_gemm.fp32", &LaunchSums,
             {.operation = "moe.grouped_gemm",
              .constraints = kConstraints,
              .accepts = kAcceptsAll,
              .strides = Strides::kAny,
              .priority = kNotYetMeasured - 1,
              .numerics = "fp32"}),
};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
