// Linear in bf16 with AVX512-BF16's dot products for few rows: register tiles over unpacked rows.
//   input  [..., k]  bf16, last dim dense     weight [n, k]  bf16, last dim dense
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: none. Deterministic. Source: own. VDPBF16PS sums pairs of products in FP32 and treats denormals as
// zero. Its rate differs between cores: twice that of f32 FMA on some (then it is faster than hwy.mlp.linear.gemm),
// half on others.
#include "kernels/spec.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include "core/float_formats.h"
#include "kernels/gemm/blocking.h"
#include "kernels/gemm/x86_reduce.h"
#include "kernels/x86_intrinsics.h"

namespace {
using namespace lz;

struct Tile {
  static constexpr int kColumns = 4;
  static constexpr int kMaxRows = 6;
  static constexpr int kStep = 32;

  // The elements of `mask` at x[m] + i and w[c] + i.
  template <int M>
  LZ_AVX512BF16_INLINE static void Step(const uint16_t* const* x, const uint16_t* const* w, int64_t i, int64_t prefetch,
                                        __mmask32 mask, __m512 (*sums)[kColumns]) {
    __m512bh xs[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) xs[m] = (__m512bh)_mm512_maskz_loadu_epi16(mask, x[m] + i);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const __m512bh ws = (__m512bh)_mm512_maskz_loadu_epi16(mask, w[c] + i);
      _mm_prefetch(reinterpret_cast<const char*>(w[c] + i) + prefetch, _MM_HINT_T0);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m][c] = _mm512_dpbf16_ps(sums[m][c], xs[m], ws);
    }
  }

  // See hwy_tile.h.
  template <int M>
  LZ_AVX512BF16 static void Run(const uint16_t* const* x, const uint16_t* const* w, int64_t k, int64_t prefetch,
                                bool add, float* out, int64_t stride) {
    // A product takes six cycles, and two begin in each cycle: few rows have two chains of sums.
    constexpr int kChains = M <= 2 ? 2 : 1;
    __m512 sums[kChains][M][kColumns];
#pragma GCC unroll 2
    for (int chain = 0; chain < kChains; ++chain)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) sums[chain][m][c] = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + kChains * kStep <= k; i += kChains * kStep) {
#pragma GCC unroll 2
      for (int chain = 0; chain < kChains; ++chain)
        Step<M>(x, w, i + chain * kStep, prefetch, ~__mmask32{0}, sums[chain]);
    }
    for (; i < k; i += kStep)
      Step<M>(x, w, i, prefetch, k - i >= kStep ? ~__mmask32{0} : (__mmask32{1} << (k - i)) - 1, sums[0]);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c)
        if constexpr (kChains == 2) sums[0][m][c] = _mm512_add_ps(sums[0][m][c], sums[1][m][c]);
      float* to = out + m * stride;
      const __m128 four = gemm::SumOfFour(sums[0][m]);
      _mm_storeu_ps(to, add ? _mm_add_ps(four, _mm_loadu_ps(to)) : four);
    }
  }

  LZ_AVX512BF16 static void Store(const float* sums, const uint16_t* bias, int64_t columns, uint16_t* out) {
    for (int64_t c = 0; c < columns; c += 16) {
      const __mmask16 mask = columns - c >= 16 ? __mmask16(0xffff) : __mmask16((1u << (columns - c)) - 1);
      __m512 sum = _mm512_maskz_loadu_ps(mask, sums + c);
      if (bias) {
        const __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, bias + c));
        sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)));
      }
      _mm256_mask_storeu_epi16(out + c, mask, (__m256i)_mm512_cvtneps_pbh(sum));
    }
  }
};

int32_t Launch(const lz_kernel_args* args) {
  gemm::RunAll<Tile, uint16_t>(args);
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
});
// x86.mlp.linear.avx512bf16_packed is faster.
constexpr auto kManyRows = std::to_array<Constraint>({{"rows", Rel::kGt, 32}});
constexpr auto kPreferences = std::to_array<Preference>({{.when = kManyRows, .priority = kAfterOthers}});
constexpr std::array kFamily = {CpuSpec("x86.mlp.linear.avx512bf16", &Launch,
                                        {.operation = "mlp.linear",
                                         .dtypes = Mask(DType::kBF16),
                                         .constraints = kConstraints,
                                         .accepts = kAcceptsAll,
                                         .priority = 85,
                                         .preferences = kPreferences})};
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
