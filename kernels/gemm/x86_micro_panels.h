// Micro-panels of 16 rows of input for the AMX kernel of linear in bf16: pairs of k are adjacent, so that weights are
// read as they are stored and sums need no folding. Packing, the work of each thread and the store of sums. For files
// of x86-64 only.
#pragma once

#include <algorithm>

#include "kernels/gemm/x86_pack.h"
#include "kernels/launch.h"
#include "ops/mlp/linear.h"

namespace lz::x86_micro_panels {
using x86::kMicroPanel;
using x86::kStepK;

constexpr int64_t kBlockColumns = 32;  // columns of output: a cache line, the unit in which threads share the work

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Pairs of one packed micro-panel: [ceil(k / 32) * 16][16 rows].
inline int64_t MicroPanelSize(int64_t k) { return CeilDiv(k, kStepK) * (kStepK / 2) * kMicroPanel; }

// The rows and columns of the output.
struct OutputRows {
  explicit OutputRows(const lz_kernel_args* args)
      : data(Data<uint16_t>(args->tensors[ops::mlp_linear::kOutput])),
        bias(Given(args->tensors[ops::mlp_linear::kBias]) ? Data<const uint16_t>(args->tensors[ops::mlp_linear::kBias])
                                                          : nullptr),
        rows(NumRows(args->tensors[ops::mlp_linear::kOutput])),
        offsets(args->tensors[ops::mlp_linear::kOutput]) {}

  // Stores sums[c * stride + r] of column `first` + c and row `row` + r, for a whole micro-panel and kBlockColumns
  // columns, of which `columns` are stored.
  LZ_AVX512BF16 void Store(const float* sums, int64_t stride, int64_t row, int64_t first, int64_t columns) const {
    const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i pairs =
        _mm512_add_epi32(_mm512_set1_epi32(16 << 16), _mm512_or_si512(low, _mm512_slli_epi32(low, 16)));
    __m512 v[16];
#pragma GCC unroll 16
    for (int c = 0; c < kBlockColumns; c += 2) {
      __m512 even = _mm512_loadu_ps(sums + c * stride), odd = _mm512_loadu_ps(sums + (c + 1) * stride);
      if (bias && c < columns) even = _mm512_add_ps(even, Bias(first + c));
      if (bias && c + 1 < columns) odd = _mm512_add_ps(odd, Bias(first + c + 1));
      v[c / 2] = _mm512_castsi512_ps(_mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
    }
    x86::Transpose(v);
    const __mmask32 mask = columns >= 32 ? ~__mmask32{0} : (__mmask32{1} << columns) - 1;
    for (int64_t r = 0; r < std::min(kMicroPanel, rows - row); ++r)
      _mm512_mask_storeu_epi16(data + offsets[row + r] + first, mask, _mm512_castps_si512(v[r]));
  }
  LZ_AVX512BF16_INLINE __m512 Bias(int64_t column) const {
    return _mm512_castsi512_ps(_mm512_set1_epi32(int32_t(bias[column]) << 16));
  }

  uint16_t* data;
  const uint16_t* bias;
  int64_t rows;
  RowOffsets offsets;
};

inline uint64_t Workspace(const lz_kernel_args* args) {
  using namespace ops::mlp_linear;
  const int64_t micro_panels = CeilDiv(NumRows(args->tensors[kOutput]), kMicroPanel);
  return uint64_t(micro_panels * MicroPanelSize(args->tensors[kWeight].shape[1])) * sizeof(uint32_t);
}

inline void Pack(const lz_kernel_args* args) {
  using namespace ops::mlp_linear;
  const lz_tensor& input = args->tensors[kInput];
  const int64_t k = args->tensors[kWeight].shape[1], rows = NumRows(args->tensors[kOutput]);
  const RowOffsets offsets(input);
  ParallelFor(args, CeilDiv(rows, kMicroPanel), 16384 / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const int64_t count = std::min(kMicroPanel, rows - s * kMicroPanel);
      const uint16_t* x[kMicroPanel];
      for (int64_t r = 0; r < count; ++r) x[r] = Data<const uint16_t>(input) + offsets[s * kMicroPanel + r];
      x86::PackMicroPanel(x, count, k, static_cast<uint32_t*>(args->workspace) + s * MicroPanelSize(k));
    }
  });
}

// Packs the input and divides the columns among threads: body(first, end).
template <class Body>
int32_t Run(const lz_kernel_args* args, const Body& body) {
  using namespace ops::mlp_linear;
  if (args->workspace_bytes < Workspace(args)) return 1;
  Pack(args);
  const int64_t n = args->tensors[kWeight].shape[0];
  ParallelFor(args, CeilDiv(n, kBlockColumns), 1,
              [&](int64_t begin, int64_t end) { body(begin * kBlockColumns, std::min(end * kBlockColumns, n)); });
  return 0;
}

}  // namespace lz::x86_micro_panels
