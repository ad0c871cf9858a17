// Linear for one to four rows, CPU SIMD: every weight is read once, four output columns at a time.
//   input  [..., k]  f32|bf16, last dim dense, at most 4 rows     weight [n, k]  dtype of input, last dim dense
//   bias   [n]       dtype of input, optional                     output [..., n]
// Workspace: none. Deterministic (a column's sum does not depend on the partition). Source: own. FP32 sums in lanes x
// (1 or 2) parts; bf16 vectors are split into their even and odd elements, which both are f32 by a shift or a mask.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/hwy_gemv.cpp"
// The accumulators are arrays of vectors: targets whose vectors have no size at compile time cannot hold them.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>

#include "core/kernel.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "ops/mlp/linear.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int kColumns = 4;  // of one block
// Weights that are worth waking another thread for: about 1 us of reading from a cache.
constexpr int64_t kGrainBytes = 64 * 1024;

// The elements of one vector's worth of storage as f32 vectors: one for f32, two (even, odd) for bf16.
template <class T>
struct Parts;
template <>
struct Parts<float> {
  static constexpr int kCount = 1;
  static HWY_INLINE void Load(const float* p, VF* v) { v[0] = hn::LoadU(DF(), p); }
};
template <>
struct Parts<BF16> {
  static constexpr int kCount = 2;
  static HWY_INLINE void Load(const BF16* p, VF* v) {
    const hn::Repartition<uint16_t, DF> d16;
    const hn::RebindToUnsigned<DF> d32;
    const auto pairs = hn::BitCast(d32, hn::LoadU(d16, &p->bits));
    v[0] = hn::BitCast(DF(), hn::ShiftLeft<16>(pairs));
    v[1] = hn::BitCast(DF(), hn::And(pairs, hn::Set(d32, 0xffff0000u)));
  }
};

// Lane c = the sum of all lanes of v[c].
HWY_INLINE hn::Vec<hn::Full128<float>> SumOfEach(const VF* v) {
  const hn::Repartition<uint64_t, DF> d64;
  const auto ab = hn::Add(hn::InterleaveLower(DF(), v[0], v[1]), hn::InterleaveUpper(DF(), v[0], v[1]));
  const auto cd = hn::Add(hn::InterleaveLower(DF(), v[2], v[3]), hn::InterleaveUpper(DF(), v[2], v[3]));
  const auto ab64 = hn::BitCast(d64, ab), cd64 = hn::BitCast(d64, cd);
  const auto low = hn::BitCast(DF(), hn::InterleaveLower(d64, ab64, cd64));
  const auto high = hn::BitCast(DF(), hn::InterleaveUpper(d64, ab64, cd64));
  const auto sum = hn::Add(low, high);  // of each 128-bit block
#if HWY_TARGET <= HWY_AVX3
  const hn::Half<DF> d256;
  const auto sum256 = hn::Add(hn::LowerHalf(d256, sum), hn::UpperHalf(d256, sum));
  const hn::Half<decltype(d256)> d128;
  return hn::Add(hn::LowerHalf(d128, sum256), hn::UpperHalf(d128, sum256));
#elif HWY_TARGET == HWY_AVX2
  const hn::Half<DF> d128;
  return hn::Add(hn::LowerHalf(d128, sum), hn::UpperHalf(d128, sum));
#else
  return sum;
#endif
}

// out[m][c] = sum_i x[m][i] * w[c][i]. `ahead`: bytes from a weight to the one to prefetch with it.
template <class T, int M>
HWY_INLINE void Block(const T* const* x, const T* const* w, int64_t k, int64_t ahead, float (*out)[kColumns]) {
  using P = Parts<T>;
  constexpr int kChains = M == 1 ? P::kCount : 1;  // more than one where the products are too few to hide the latency
  const int64_t step = P::kCount * int64_t(hn::Lanes(DF()));
  VF sum[M][kChains][kColumns];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int s = 0; s < kChains; ++s)
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sum[m][s][c] = hn::Zero(DF());
  int64_t i = 0;
  for (; i + step <= k; i += step) {
    VF xs[M][P::kCount];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) P::Load(x[m] + i, xs[m]);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      VF ws[P::kCount];
      P::Load(w[c] + i, ws);
      hwy::Prefetch(reinterpret_cast<const char*>(w[c] + i) + ahead);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int p = 0; p < P::kCount; ++p)
          sum[m][p % kChains][c] = hn::MulAdd(xs[m][p], ws[p], sum[m][p % kChains][c]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int s = 1; s < kChains; ++s)
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sum[m][0][c] = hn::Add(sum[m][0][c], sum[m][s][c]);
    hn::StoreU(SumOfEach(sum[m][0]), hn::Full128<float>(), out[m]);
  }
  for (; i < k; ++i)
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) out[m][c] += ToFloat(x[m][i]) * ToFloat(w[c][i]);
}

// Blocks [begin, end) of output columns for M rows of input.
template <class T, int M>
void Columns(const lz_kernel_args* args, int64_t begin, int64_t end) {
  const lz_tensor& input = args->tensors[kInput];
  const lz_tensor& weight = args->tensors[kWeight];
  const lz_tensor& bias = args->tensors[kBias];
  const lz_tensor& output = args->tensors[kOutput];
  const int64_t n = weight.shape[0], k = weight.shape[1], stride = weight.strides[0];
  const T* pbias = Given(bias) ? Data<const T>(bias) : nullptr;
  const T* x[M];
  T* y[M];
  for (int m = 0; m < M; ++m) {
    x[m] = Data<const T>(input) + RowOffset(input, m);
    y[m] = Data<T>(output) + RowOffset(output, m);
  }
  const int64_t ahead = kColumns * stride * int64_t(sizeof(T));  // the same place of the next block
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * kColumns, count = std::min<int64_t>(kColumns, n - first);
    const T* w[kColumns];  // the last block may be narrower: it repeats its last row
    for (int c = 0; c < kColumns; ++c)
      w[c] = Data<const T>(weight) + (first + std::min<int64_t>(c, count - 1)) * stride;
    float sums[M][kColumns];
    Block<T, M>(x, w, k, ahead, sums);
    for (int m = 0; m < M; ++m)
      for (int64_t c = 0; c < count; ++c)
        FromFloat(sums[m][c] + (pbias ? ToFloat(pbias[first + c]) : 0.0f), y[m] + first + c);
  }
}

template <class T, int M>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor& weight = args->tensors[kWeight];
  const int64_t blocks = (weight.shape[0] + kColumns - 1) / kColumns;
  const int64_t block_bytes = kColumns * (weight.shape[1] + 16) * int64_t(sizeof(T));
  ParallelFor(args, blocks, kGrainBytes / block_bytes + 1,
              [&](int64_t begin, int64_t end) { Columns<T, M>(args, begin, end); });
  return 0;
}

template <class T>
int32_t RunRows(const lz_kernel_args* args) {
  switch (NumRows(args->tensors[kOutput])) {
    case 0: return 0;
    case 1: return Run<T, 1>(args);
    case 2: return Run<T, 2>(args);
    case 3: return Run<T, 3>(args);
    case 4: return Run<T, 4>(args);
    default: return 1;
  }
}

int32_t Launch(const lz_kernel_args* args) {
  return DTypeOf(args->tensors[kInput]) == DType::kF32 ? RunRows<float>(args) : RunRows<BF16>(args);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

constexpr auto kConstraints = std::to_array<Constraint>({
    {"rows", Rel::kLe, 4},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.gemv",
     .operation = "mlp.linear",
     .dtypes = kF32BF16,
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
