// Linear with packed GGUF weights for any number of rows, CPU SIMD, activations in int8: products are summed as
// integers (exact), and scales are applied to 32 values (q6_k: 16) at once.
//   input  [..., k]  f32|f16|bf16, last dim dense     packed [ceil(n / 16), bytes] u8, from linear_gguf_prepack
//   bias   [n]       dtype of input, optional          output [..., n], last dim dense
// Workspace: one block record for each row and 32 values of k. Deterministic. Source: own.
#define HWY_WANT_AVX3_DL 1  // its dot products of bytes
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/gguf/hwy_int8.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/gemm/gguf/groups.h"
#include "kernels/simd.h"
#include "kernels/spec.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
// 32 values of one row of input, and their sums; sum1 is that of the last 16.
struct IntBlock {
  int32_t quads[8];  // four int8 each
  float d;
  int32_t sum, sum0, sum1;  // in units of d
};

template <class T>
HWY_INLINE void MakeBlock(const T* x, IntBlock* block) {
  VF largest = hn::Zero(DF());
  bool finite = true;
  for (int i = 0; i < 32; i += kLanes) {
    const VF v = LoadF32(DF(), x + i);
    finite = finite && hn::AllTrue(DF(), hn::IsFinite(v));
    largest = hn::Max(largest, hn::Abs(v));
  }
  const float amax = finite ? hn::GetLane(hn::MaxOfLanes(DF(), largest)) : 0.0f;
  const VF inverse = hn::Set(DF(), amax < kLeastActivation ? 0.0f : 127.0f / amax), zero = hn::Zero(DF());
  const hn::Rebind<int8_t, DF> d8;
  auto* rounded = reinterpret_cast<int8_t*>(block->quads);
  int sums[2];
  for (int half = 0; half < 2; ++half) {
    VI sum = hn::Zero(DI());
    for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
      const VF v = finite ? hn::Mul(LoadF32(DF(), x + i), inverse) : zero;
      const VI value = hn::NearestInt(v);  // ties to even
      hn::StoreU(hn::DemoteTo(d8, value), d8, rounded + i);
      sum = hn::Add(sum, value);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(DI(), sum));
  }
  block->d = finite ? amax / 127.0f : NAN;
  block->sum0 = sums[0], block->sum1 = sums[1], block->sum = sums[0] + sums[1];
}

// sum + the dot product of each lane's four unsigned bytes with four signed ones.
HWY_INLINE VI AddDot4(VI sum, hn::Vec<DU8> weights, int32_t quad) {
#if HWY_TARGET == HWY_AVX3_DL
  const VI a = hn::Set(DI(), quad);  // Highway's compile flags for this target lack avx512vnni, though its check of the
                                     // CPU includes it
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(weights.raw), "v"(a.raw));
  return sum;
#elif HWY_ARCH_X86
  const hn::Repartition<int16_t, DF> d16;  // bytes 0 and 2, 1 and 3: products of pairs add within a lane
  const auto a = hn::BitCast(d16, hn::Set(DI(), quad)), c = hn::BitCast(d16, weights);
  const hn::RebindToUnsigned<decltype(d16)> du16;
  const auto even = hn::And(c, hn::Set(d16, 255)), odd = hn::BitCast(d16, hn::ShiftRight<8>(hn::BitCast(du16, c)));
  VI unused = hn::Zero(DI());
  sum = hn::ReorderWidenMulAccumulate(DI(), even, hn::ShiftRight<8>(hn::ShiftLeft<8>(a)), sum, unused);
  return hn::ReorderWidenMulAccumulate(DI(), odd, hn::ShiftRight<8>(a), sum, unused);
#else
  const VI c = hn::BitCast(DI(), weights), byte = hn::Set(DI(), 255);
  sum = hn::Add(sum, hn::Mul(hn::And(c, byte), hn::Set(DI(), int8_t(quad))));
  sum = hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<8>(c), byte), hn::Set(DI(), int8_t(quad >> 8))));
  sum = hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<16>(c), byte), hn::Set(DI(), int8_t(quad >> 16))));
  return hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<24>(c), byte), hn::Set(DI(), int8_t(quad >> 24))));
#endif
}

// The sum of quantized values times activations of a part of a block, and its contribution to a total. `sum`: that of
// the activations; quantized values relative to `zero` may cancel with it, so the subtraction is done in integers.
struct IntSum {
  using Block = IntBlock;
  static constexpr bool kSumsNibbles = false;
  VI v;
  HWY_INLINE void Clear() { v = hn::Zero(DI()); }
  // Four values of k, one byte of a lane each.
  HWY_INLINE void Add(hn::Vec<DU8> weights, const IntBlock& a, int quad) { v = AddDot4(v, weights, a.quads[quad]); }
  HWY_INLINE VF AddFrom(int zero, VF d, int32_t sum, const IntBlock& a, VF total) const {
    const VF value = hn::ConvertTo(DF(), hn::Sub(v, hn::Set(DI(), zero * sum)));
    return hn::MulAdd(hn::Mul(d, value), hn::Set(DF(), a.d), total);  // value * a.d may overflow f32
  }
  HWY_INLINE VF AddOffset(VF d, VF m, int32_t sum, const IntBlock& a, VF total) const {
    const VF value = hn::MulAdd(m, hn::Set(DF(), float(sum)), hn::Mul(d, hn::ConvertTo(DF(), v)));
    return hn::MulAdd(value, hn::Set(DF(), a.d), total);
  }
};

int32_t Launch(const lz_kernel_args* args) {
  return WithFloatType(DTypeOf(args->tensors[kInput]), [args](auto t) { return Run<IntSum, decltype(t)>(args); });
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
    gguf::Activations(kInt8),
});
constexpr std::array kFamily = {CpuSpec("hwy.mlp.linear.gguf.int8", &LaunchBest,
                                        {.operation = "mlp.linear.gguf",
                                         .constraints = kConstraints,
                                         .accepts = gguf::kAccepts,
                                         .numerics = "w4a8-int",
                                         .workspace = &gguf::WorkspaceOf<48>})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
