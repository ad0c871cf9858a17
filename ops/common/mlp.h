// Shared by mlp.fused and moe.fused: the forms of the weights, their checks, one row in FP64. Tensors from
// `gate_weight` on: gate_weight, down_weight, up_weight, gate_bias, up_bias, down_bias. With experts each has a leading
// axis of experts.
#pragma once

#include <vector>

#include "core/number_text.h"
#include "core/view.h"
#include "ops/common/activation.h"

namespace lz::ops::mlp {

enum Weight { kGateWeight, kDownWeight, kUpWeight, kGateBias, kUpBias, kDownBias, kNumWeights };

#define LZ_MLP_FORMS                                                                                                  \
  "With gate_weight [2 n, d] its rows are gate and up: the first and the second n, or the even and the odd ones if "  \
  "interleaved; with up_weight both have n rows; gate_weight [n, d] without up_weight is an MLP without a gate: h = " \
  "activation(gate_weight x + gate_bias). "

// `gate`: gate_weight's rows. `weights`: the tensors from gate_weight on; `activation`: the five scalars.
inline Status Check(const lz_tensor* weights, const lz_scalar* activation) {
  const lz_tensor &gate = weights[kGateWeight], &down = weights[kDownWeight];
  const int64_t g = gate.shape[gate.ndim - 2], n = down.shape[down.ndim - 1];
  const bool separate = weights[kUpWeight].ndim >= 0, packed = !separate && g == 2 * n;
  if (g != n && !packed) {
    const std::string rows = std::to_string(n);
    return Invalid("gate_weight", (separate ? "" : std::to_string(2 * n) + " rows (gate and up) or ") + rows + " rows",
                   std::to_string(g), "down_weight has " + rows + " columns");
  }
  if (weights[kUpBias].ndim >= 0 && !separate) {
    return Invalid("up_bias", "none without up_weight", "a tensor", "a packed gate_bias holds both");
  }
  if (activation[4].value.i && !packed) {
    return Invalid("interleaved", "false unless gate_weight packs gate and up", "true", "leave it out");
  }
  if (activation[3].value.f != 0 && !separate && !packed) {
    return Invalid("up_offset", "0 without an up projection", NumberText(activation[3].value.f), "leave it out");
  }
  return activation::CheckGate(activation);
}

// The weights of one expert (or of the only one) in FP64.
class Reference {
 public:
  Reference(const lz_tensor* weights, const lz_scalar* activation, int64_t expert = -1)
      : gate_(activation), interleaved_(activation[4].value.i), t_(weights) {
    for (int i = 0; i < kNumWeights; ++i) base_[i] = expert >= 0 && t_[i].ndim >= 0 ? expert * t_[i].strides[0] : 0;
    g_ = t_[kGateWeight].shape[t_[kGateWeight].ndim - 2];
    n_ = t_[kDownWeight].shape[t_[kDownWeight].ndim - 1];
  }

  std::vector<double> Row(const std::vector<double>& x) const {
    std::vector<double> h;
    if (t_[kUpWeight].ndim >= 0) {
      const std::vector<double> gate = Product(kGateWeight, kGateBias, x), up = Product(kUpWeight, kUpBias, x);
      for (int64_t i = 0; i < n_; ++i) h.push_back(gate_(gate[size_t(i)], up[size_t(i)]));
    } else {
      const std::vector<double> all = Product(kGateWeight, kGateBias, x);
      for (int64_t i = 0; i < n_; ++i) {
        if (g_ != 2 * n_) {
          h.push_back(gate_.Activate(all[size_t(i)]));
        } else {
          const size_t gate = size_t(interleaved_ ? 2 * i : i), up = size_t(interleaved_ ? 2 * i + 1 : n_ + i);
          h.push_back(gate_(all[gate], all[up]));
        }
      }
    }
    return Product(kDownWeight, kDownBias, h);
  }

 private:
  std::vector<double> Product(Weight weight, Weight bias, const std::vector<double>& x) const {
    const lz_tensor &w = t_[weight], &b = t_[bias];
    const View view(w), shift(b);
    std::vector<double> y(size_t(w.shape[w.ndim - 2]));
    for (size_t row = 0; row < y.size(); ++row) {
      double sum = b.ndim >= 0 ? shift.Load(base_[bias] + int64_t(row) * b.strides[b.ndim - 1]) : 0.0;
      const int64_t from = base_[weight] + int64_t(row) * w.strides[w.ndim - 2];
      for (size_t i = 0; i < x.size(); ++i) sum += x[i] * view.Load(from + int64_t(i) * w.strides[w.ndim - 1]);
      y[row] = sum;
    }
    return y;
  }

  activation::Gate gate_;
  bool interleaved_;
  const lz_tensor* t_;
  int64_t base_[kNumWeights], g_, n_;
};

}  // namespace lz::ops::mlp
