// Linear for any number of rows, CPU SIMD: register tiles over unpacked rows, blocked for the caches. With at most four
// rows every weight is read once, four output columns at a time.
//   input  [..., k]  f32|bf16|f16, last dim dense     weight [n, k]  dtype of input, last dim dense
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: none. Deterministic. Source: own. FP32 sums, one partial sum per lane (and per half of a bf16 pair) and
// block of k.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/hwy_gemm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/gemm/blocking.h"
#include "kernels/gemm/hwy_tile.h"
#include "kernels/spec.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {

template <class T>
int32_t Run(const lz_kernel_args* args) {
  gemm::RunAll<Tile<T>, T>(args);
  return 0;
}
LZ_LAUNCH_BY_FLOAT(ops::mlp_linear::kInput);

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

// With so few rows the time is that of reading the weights.
constexpr auto kFewRows = std::to_array<Constraint>({{"rows", Rel::kLe, 4}});
// A CPU with bf16 dot products has a faster kernel (x86_avx512bf16.cpp).
constexpr auto kBF16 = std::to_array<Constraint>({{"dtype", Rel::kEq, int64_t(DType::kBF16)}});
constexpr auto kPreferences =
    std::to_array<Preference>({{.when = kFewRows, .priority = 80}, {.when = kBF16, .priority = 40}});
constexpr std::array kFamily = {
    CpuSpec("hwy.mlp.linear.gemm", &LaunchBest,
            {.operation = "mlp.linear", .accepts = kAcceptsAll, .priority = 60, .preferences = kPreferences})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
