// Linear with packed GGUF weights for any number of rows, CPU SIMD, activations not rounded: products are summed in
// FP32, and scales are applied to 32 values (q6_k: 16) at once.
//   input  [..., k]  f32|f16|bf16, last dim dense     packed [ceil(n / 16), bytes] u8, from linear_gguf_prepack
//   bias   [n]       dtype of input, optional          output [..., n], last dim dense
// Workspace: one block record for each row and 32 values of k. Deterministic. Source: own.
#define HWY_WANT_AVX3_DL 1  // its dot products of bytes
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/gguf/hwy_float.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/gemm/gguf/groups.h"
#include "kernels/simd.h"
#include "kernels/spec.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
// 32 values of one row of input, and their sums; sum1 is that of the last 16.
struct FloatBlock {
  float x[32];
  float sum, sum0, sum1, unused;
};

template <class T>
HWY_INLINE void MakeBlock(const T* x, FloatBlock* block) {
  float sums[2];
  for (int half = 0; half < 2; ++half) {
    VF sum = hn::Zero(DF());
    for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
      const VF v = LoadF32(DF(), x + i);
      hn::StoreU(v, DF(), block->x + i);
      sum = hn::Add(sum, v);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(DF(), sum));
  }
  block->sum0 = sums[0], block->sum1 = sums[1], block->sum = sums[0] + sums[1];
}

// The sum of quantized values times activations of a part of a block, and its contribution to a total. `sum`: that of
// the activations.
struct FloatSum {
  using Block = FloatBlock;
#if HWY_TARGET <= HWY_AVX3
  static constexpr bool kSumsNibbles = true;
  template <int M>
  static void SumNibbles(const uint8_t* p, const FloatBlock* const* a, int64_t block, FloatSum (*sums)[2]);
#else
  static constexpr bool kSumsNibbles = false;
#endif
  VF v;
  HWY_INLINE void Clear() { v = hn::Zero(DF()); }
  HWY_INLINE void Add(hn::Vec<DU8> weights, const FloatBlock& a, int quad) {
    const VI four = hn::BitCast(DI(), weights), byte = hn::Set(DI(), 255);
    v = hn::MulAdd(hn::ConvertTo(DF(), hn::And(four, byte)), hn::Set(DF(), a.x[4 * quad]), v);
    v = hn::MulAdd(hn::ConvertTo(DF(), hn::And(hn::ShiftRight<8>(four), byte)), hn::Set(DF(), a.x[4 * quad + 1]), v);
    v = hn::MulAdd(hn::ConvertTo(DF(), hn::And(hn::ShiftRight<16>(four), byte)), hn::Set(DF(), a.x[4 * quad + 2]), v);
    const hn::RebindToUnsigned<DI> du;
    const VI last = hn::BitCast(DI(), hn::ShiftRight<24>(hn::BitCast(du, four)));
    v = hn::MulAdd(hn::ConvertTo(DF(), last), hn::Set(DF(), a.x[4 * quad + 3]), v);
  }
  HWY_INLINE VF AddFrom(int zero, VF d, float sum, const FloatBlock&, VF total) const {
    return hn::MulAdd(d, hn::MulAdd(hn::Set(DF(), float(-zero)), hn::Set(DF(), sum), v), total);
  }
  HWY_INLINE VF AddOffset(VF d, VF m, float sum, const FloatBlock&, VF total) const {
    return hn::MulAdd(m, hn::Set(DF(), sum), hn::MulAdd(d, v, total));
  }
};

#if HWY_TARGET <= HWY_AVX3
// Converts a lane's eight 4-bit values by look-up: the index uses only the lowest four bits, so nothing is masked. For
// few rows each half of a block has two sums, so that a look-up does not wait for the previous one.
template <int M>
constexpr int kNibbleChains = M <= 2 ? 4 : 2;
template <int M>
HWY_INLINE void AddNibbles(hn::Vec<DU8> weights, int part, const FloatBlock* const* a, int64_t block,
                           VF (*sums)[kNibbleChains<M>]) {
  const VF values = hn::Iota(DF(), 0);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i index = i ? _mm512_srli_epi32(weights.raw, unsigned(4 * i)) : weights.raw;
    const VF w{_mm512_permutexvar_ps(index, values.raw)};
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      VF& sum = sums[m][i % kNibbleChains<M>];
      sum = hn::MulAdd(w, hn::Set(DF(), a[m][block].x[i % 2 * 16 + 4 * part + i / 2]), sum);
    }
  }
}
// sums: those of a block.
template <int M>
HWY_INLINE void FloatSum::SumNibbles(const uint8_t* p, const FloatBlock* const* a, int64_t block, FloatSum (*sums)[2]) {
  constexpr int kChains = kNibbleChains<M>;
  VF parts[M][kChains];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) parts[m][chain] = hn::Zero(DF());
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) AddNibbles<M>(LoadQuantized(p + c * 64), c, a, block, parts);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
      sums[m][half].v = kChains == 2 ? parts[m][half] : hn::Add(parts[m][half], parts[m][half + kChains - 2]);
}
#endif

int32_t Launch(const lz_kernel_args* args) {
  return WithFloatType(DTypeOf(args->tensors[kInput]), [args](auto t) { return Run<FloatSum, decltype(t)>(args); });
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
using namespace lz::ops::mlp_linear_gguf;
LZ_HWY_EXPORT(Launch);

constexpr auto kConstraints = std::to_array<Constraint>({
    gguf::kPackedGiven,
    gguf::Activations(kAsGiven),
});
constexpr std::array kFamily = {CpuSpec("hwy.mlp.linear.gguf.float", &LaunchBest,
                                        {.operation = "mlp.linear.gguf",
                                         .constraints = kConstraints,
                                         .accepts = gguf::kAccepts,
                                         .workspace = &gguf::WorkspaceOf<144>})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
