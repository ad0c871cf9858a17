// Linear with weights in panels of 64 columns with AVX512-BF16's dot products: a panel holds the pairs that they want.
//   input  [..., k]  bf16, last dim dense     panels [n / 64, k, 64]  bf16, contiguous
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: none. Deterministic. Source: own. VDPBF16PS sums pairs of products in FP32 and takes denormals for zero;
// FP32 sums over k in order, in blocks of 256.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <cstring>

#include "kernels/mlp/linear/panels/blocks.h"
#include "kernels/x86_intrinsics.h"

namespace {
using namespace lz;
using panels::Sums;

constexpr int kVectors = 4;  // of 16 columns

template <int R>
LZ_AVX512BF16 void AddTile(const uint16_t* const* x, const uint16_t* w, int64_t size, Sums* sums) {
  __m512 acc[R][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 2) {
    __m512bh ws[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) ws[v] = (__m512bh)_mm512_loadu_si512(w + i * panels::kPanel + v * 32);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, x[r] + i, 4);
      const __m512bh xs = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], xs, ws[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* sum = sums[r] + v * 16;
      _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), acc[r][v]));
    }
}

LZ_AVX512BF16 void Store(const float* sums, const uint16_t* bias, uint16_t* to) {
  for (int v = 0; v < kVectors; ++v) {
    __m512 sum = _mm512_loadu_ps(sums + v * 16);
    if (bias) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bias + v * 16));
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + v * 16), (__m256i)_mm512_cvtneps_pbh(sum));
  }
}

int32_t Launch(const lz_kernel_args* args) {
  panels::ForBlocks<uint16_t>(
      args,
      [](const uint16_t* const* x, int64_t tile, const uint16_t* w, int64_t size, Sums* sums) {
        panels::WithTile(tile, [&](auto rows) { AddTile<rows()>(x, w, size, sums); });
      },
      &Store);
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"panels.contiguous", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "x86.mlp.linear.panels.avx512bf16",
     .operation = "mlp.linear.panels",
     .dtypes = Mask(DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 70,
     .deterministic = true,
     .launch = &Launch},
});
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
