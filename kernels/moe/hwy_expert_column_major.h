// An expert with column-major weights (gpt_oss's), for moe::RunExperts. Gemm: how products of more than a few rows are
// computed, see column_major::GemmFP32. Include only from files that Highway compiles per target.
#if defined(LZ_KERNELS_MOE_HWY_EXPERT_COLUMN_MAJOR_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_MOE_HWY_EXPERT_COLUMN_MAJOR_H_
#undef LZ_KERNELS_MOE_HWY_EXPERT_COLUMN_MAJOR_H_
#else
#define LZ_KERNELS_MOE_HWY_EXPERT_COLUMN_MAJOR_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/activation/functions.h"
#include "kernels/gemm/hwy_column_major.h"
#include "kernels/moe/hwy_experts.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::moe {
using column_major::Weight;

// An expert's bias, from element `first` on; null: none.
template <class T>
const T* BiasOf(const lz_tensor& bias, int64_t expert, int64_t first = 0) {
  return Given(bias) ? Data<const T>(bias) + expert * bias.strides[0] + first : nullptr;
}

// out[c] = sums[c * step] * scale + bias[c * step].
template <class T>
void Finish(const float* sums, int64_t step, int64_t columns, float scale, const T* bias, float* out) {
  for (int64_t c = 0; c < columns; ++c) out[c] = sums[c * step] * scale + (bias ? ToFloat(bias[c * step]) : 0.0f);
}

template <class T, class Gemm>
class ExpertColumnMajor {
 public:
  static int64_t PackedFloats(const lz_kernel_args* args) {
    const MoeSizes s(args);
    const lz_tensor& input = args->tensors[kInput];
    const int64_t rows = std::min(kHiddenTileRows, s.tokens * s.k), k = std::max(s.n, input.shape[input.ndim - 1]);
    return (std::max(Gemm::template WideSize<T>(rows, k), Gemm::template WideSize<Intermediate<T>>(rows, k)) + 1) / 2 *
           2;
  }

  ExpertColumnMajor(const lz_kernel_args* args, int64_t e)
      : n_(args->tensors[kDownWeight].shape[2]),
        m_(args->tensors[kDownWeight].shape[1]),
        interleaved_(args->scalars[kInterleaved].value.i != 0),
        separate_(Given(args->tensors[kUpWeight])),
        gated_(separate_ || args->tensors[kGateWeight].shape[1] != n_),
        function_(&args->scalars[kActivation]),
        up_half_{Weight<T>(args->tensors[kGateWeight], e),
                 Weight<T>(args->tensors[separate_ ? kUpWeight : kGateWeight], e, FirstUp())},
        down_(args->tensors[kDownWeight], e),
        gate_bias_(BiasOf<T>(args->tensors[kGateBias], e)),
        up_bias_(BiasOf<T>(args->tensors[separate_ ? kUpBias : kGateBias], e, FirstUp())),
        down_bias_(BiasOf<T>(args->tensors[kDownBias], e)) {}

  void Hidden(const lz_kernel_args* args, const T* const* x, const float* scales, int64_t count, float* packed,
              Intermediate<T>* h) const {
    const auto row_of = [&](int64_t row) { return x[row]; };
    const int step = interleaved_ ? 2 : 1;
    const column_major::Operands<T, decltype(row_of)> operands = {row_of, count, up_half_,
                                                                  gated_ && !interleaved_ ? 2 : 1, step * n_};
    column_major::Multiply<Gemm>(
        args, operands, packed, [&](int64_t row, int64_t first, int64_t columns, const float* gates, const float* ups) {
          float g[column_major::kGemvColumns], u[column_major::kGemvColumns];
          const int64_t own = columns / step;
          const float scale = scales ? scales[row] : 1.0f;
          Intermediate<T>* out = h + row * n_ + first / step;
          Finish(gates, step, own, scale, gate_bias_ ? gate_bias_ + first : nullptr, g);
          if (gated_) {
            Finish(interleaved_ ? gates + 1 : ups, step, own, scale, up_bias_ ? up_bias_ + first : nullptr, u);
            MapRow(out, own, function_, g, u);
          } else {
            MapRow(
                out, own, [&](auto d, auto v) HWY_ATTR { return function_.Activated(d, v); }, g);
          }
        });
  }

  template <class Body>
  void Down(const lz_kernel_args* args, const Intermediate<T>* const* h, int64_t count, float* packed,
            const Body& body) const {
    const auto row_of = [&](int64_t row) { return h[row]; };
    const column_major::Operands<T, decltype(row_of)> operands = {row_of, count, &down_, 1, m_};
    column_major::Multiply<Gemm>(args, operands, packed,
                                 [&](int64_t row, int64_t first, int64_t columns, const float* sums, const float*) {
                                   float outputs[column_major::kGemvColumns];
                                   Finish(sums, 1, columns, 1.0f, down_bias_ ? down_bias_ + first : nullptr, outputs);
                                   body(row, first, columns, outputs);
                                 });
  }

 private:
  // The first element of up in the tensor that has it.
  int64_t FirstUp() const { return separate_ || !gated_ ? 0 : interleaved_ ? 1 : n_; }

  int64_t n_, m_;
  bool interleaved_, separate_, gated_;
  GateFunction function_;
  Weight<T> up_half_[2], down_;  // gate and up, or only gate
  const T *gate_bias_, *up_bias_, *down_bias_;
};

}  // namespace lz::HWY_NAMESPACE::moe
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
