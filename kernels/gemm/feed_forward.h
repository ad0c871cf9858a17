// Feed-forward blocks of one set of weights on rows of input, CPU SIMD, shared by mlp.fused, moe.fused and
// moe.grouped_gemm. Products use the register tile of mlp.linear; gate, up and activation are computed in one pass over
// the weights. Include only from files that Highway compiles per target.
#if defined(LZ_KERNELS_GEMM_FEED_FORWARD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_FEED_FORWARD_H_
#undef LZ_KERNELS_GEMM_FEED_FORWARD_H_
#else
#define LZ_KERNELS_GEMM_FEED_FORWARD_H_
#endif

#include "kernels/activation/functions.h"
#include "kernels/gemm/blocking.h"
#include "kernels/gemm/hwy_tile.h"
#include "kernels/rows.h"
#include "ops/common/mlp.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {

// Rows of weights of one product, and the bias of each (nullptr: none).
template <class T>
struct Product {
  // Rows first, first + step, ... of a matrix [rows, k], or of an expert's in [experts, rows, k].
  Product(const lz_tensor& w, const lz_tensor& b, int64_t expert, int64_t first, int64_t step, int64_t count)
      : weight(Data<const T>(w)), rows(count), k(w.shape[w.ndim - 1]), stride(step * w.strides[w.ndim - 2]) {
    weight += first * w.strides[w.ndim - 2] + (w.ndim > 2 ? expert * w.strides[0] : 0);
    if (!Given(b)) return;
    bias = Data<const T>(b) + first * b.strides[b.ndim - 1] + (b.ndim > 1 ? expert * b.strides[0] : 0);
    bias_stride = step * b.strides[b.ndim - 1];
  }

  // sums[m][kBlockColumns] of weight rows [first, first + columns) times x[0 .. count): count <= kBlockRows. `scale`:
  // factor of each x, nullptr for 1.
  template <class X>
  void Block(const X* const* x, const float* scale, int count, int64_t first, int64_t columns, float* sums) const {
    int64_t shape[2] = {rows, k}, strides[2] = {stride, 1};
    lz_tensor w = {};
    w.data = const_cast<T*>(weight);
    w.ndim = 2;
    w.shape = shape;
    w.strides = strides;
    gemm::SumBlock<Tile<T, X>, T>(w, x, count, first, columns, sums);
    for (int m = 0; m < count && (scale || bias); ++m) {
      for (int64_t c = 0; c < columns; ++c) {
        float& sum = sums[m * gemm::kBlockColumns + c];
        if (scale) sum *= scale[m];
        if (bias) sum += ToFloat(bias[(first + c) * bias_stride]);
      }
    }
  }

  const T* weight;
  int64_t rows, k, stride;
  const T* bias = nullptr;
  int64_t bias_stride = 0;
};

// Calls body(row, count, first, columns) for blocks of at most kBlockRows rows and kBlockColumns columns of [rows,
// columns]; threads share the columns, so that one thread reads each weight.
template <class T, class Body>
void ForBlocks(const lz_kernel_args* args, int64_t rows, int64_t columns, int64_t k, const Body& body) {
  using namespace gemm;
  const int64_t work = kBlockColumns * (k + 16) * int64_t(sizeof(T)) * std::max<int64_t>(1, rows / 2);
  ParallelFor(args, (columns + kBlockColumns - 1) / kBlockColumns, kGrainBytes / work + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t first = begin * kBlockColumns; first < std::min(end * kBlockColumns, columns);
                     first += kBlockColumns) {
                  const int64_t width = std::min(kBlockColumns, columns - first);
                  for (int64_t row = 0; row < rows; row += kBlockRows) {
                    body(row, int(std::min(kBlockRows, rows - row)), first, width);
                  }
                }
              });
}

using BlockSums = float[gemm::kBlockRows * gemm::kBlockColumns];

// The up half of a block: hidden rows from rows of input. `weights`: the six tensors from gate_weight on.
template <class T>
class HiddenRows {
 public:
  HiddenRows(const lz_tensor* weights, const lz_scalar* activation, int64_t expert)
      : n_(weights[ops::mlp::kDownWeight].shape[weights[ops::mlp::kDownWeight].ndim - 1]),
        separate_(Given(weights[ops::mlp::kUpWeight])),
        gated_(separate_ || GateRows(weights) != n_),
        function_(activation),
        gate_(weights[ops::mlp::kGateWeight], weights[ops::mlp::kGateBias], expert, 0, Step(activation), n_),
        up_(weights[separate_ ? ops::mlp::kUpWeight : ops::mlp::kGateWeight],
            weights[separate_ ? ops::mlp::kUpBias : ops::mlp::kGateBias], expert,
            separate_ || !gated_    ? 0
            : activation[4].value.i ? 1
                                    : n_,
            Step(activation), n_) {}

  // h [rows, n] from x[0 .. rows), each times scale (nullptr: 1) before the bias.
  void Run(const lz_kernel_args* args, const T* const* x, const float* scale, int64_t rows, Intermediate<T>* h) const {
    ForBlocks<T>(args, rows, n_, 2 * gate_.k, [&](int64_t row, int count, int64_t first, int64_t columns) {
      BlockSums g, u;
      const float* scales = scale ? scale + row : nullptr;
      gate_.Block(x + row, scales, count, first, columns, g);
      if (gated_) up_.Block(x + row, scales, count, first, columns, u);
      for (int m = 0; m < count; ++m) {
        Intermediate<T>* out = h + (row + m) * n_ + first;
        const float *gate = g + m * gemm::kBlockColumns, *up = u + m * gemm::kBlockColumns;
        if (gated_) {
          MapRow(out, columns, function_, gate, up);
        } else {
          MapRow(
              out, columns, [&](auto d, auto v) HWY_ATTR { return function_.Activated(d, v); }, gate);
        }
      }
    });
  }

 private:
  static int64_t GateRows(const lz_tensor* weights) {
    const lz_tensor& gate = weights[ops::mlp::kGateWeight];
    return gate.shape[gate.ndim - 2];
  }
  static int64_t Step(const lz_scalar* activation) { return activation[4].value.i ? 2 : 1; }

  int64_t n_;
  bool separate_, gated_;
  GateFunction function_;
  Product<T> gate_, up_;
};

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
