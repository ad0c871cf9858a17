// The activation functions, and the gated form act(gate) * up that fused MLPs, expert layers and packed activations
// share: parameters, checks, FP64 arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/contract.h"
#include "core/number_text.h"
#include "ops/common/checks.h"

namespace lz::ops::activation {

inline constexpr std::string_view kNames = "silu|gelu|gelu_tanh|relu|relu2|quick_gelu|sigmoid|tanh|identity";
enum Function { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kQuickGelu, kSigmoid, kTanh, kIdentity };

#define LZ_ACTIVATION_DEFINITIONS                                                                                    \
  "silu(x) = x / (1 + exp(-x)); gelu(x) = x / 2 (1 + erf(x / sqrt(2))); gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2 / "    \
  "pi) (x + 0.044715 x^3))); relu(x) = max(x, 0); relu2(x) = max(x, 0)^2; quick_gelu(x) = x / (1 + exp(-1.702 x)); " \
  "sigmoid(x) = 1 / (1 + exp(-x)); tanh(x); identity(x) = x. "

// The sigmoid of silu has the argument alpha * x. The tails of gelu keep their relative precision: 1 + erf(y) is
// computed as erfc(-y), and (1 + tanh(y)) / 2 as 1 / (1 + exp(-2 y)); the sums themselves cancel to 0 below -8.4
// and -7.3.
inline double Apply(int64_t function, double x, double alpha = 1.0) {
  switch (function) {
    case kSilu: return x / (1.0 + std::exp(-alpha * x));
    case kGelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case kGeluTanh: return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case kRelu: return x < 0 ? 0.0 : x;
    case kRelu2: return x < 0 ? 0.0 : x * x;
    case kQuickGelu: return x / (1.0 + std::exp(-1.702 * x));
    case kSigmoid: return 1.0 / (1.0 + std::exp(-x));
    case kTanh: return std::tanh(x);
    default: return x;
  }
}

// The scalars of the gated form, in this order.
inline constexpr Param kActivationParam = KeywordOnly(Choice("activation", kNames, kSilu, "applied to the gate"));
inline constexpr Param kLimitParam = KeywordOnly(
    OptionalFloat("limit", "clamps the gate to at most limit and up to [-limit, limit] first; None: no clamp"));
inline constexpr Param kAlphaParam =
    KeywordOnly(Float("alpha", 1.0, "factor inside silu's sigmoid; 1.702 in gpt-oss; other activations accept only 1"));
inline constexpr Param kUpOffsetParam =
    KeywordOnly(Float("up_offset", 0.0, "added to up, after the clamp; 1 in gpt-oss"));
inline constexpr Param kInterleavedParam =
    KeywordOnly(Bool("interleaved", false, "gate and up alternate: gate at even positions, up at odd ones"));

#define LZ_GATED_DEFINITION                                                                                      \
  "h = activation(min(g, limit)) * (clamp(u, -limit, limit) + up_offset), silu(x) = x / (1 + exp(-alpha x)); a " \
  "clamp keeps NaN. "

inline Status CheckGate(const lz_scalar* activation) {
  const lz_scalar &limit = activation[1], &alpha = activation[2];
  if (limit.given && !(limit.value.f > 0)) {
    return Invalid("limit", "a number above 0, or None", NumberText(limit.value.f), "leave it out for no clamp");
  }
  LZ_RETURN_IF_ERROR(Finite(alpha, "alpha"));
  LZ_RETURN_IF_ERROR(Finite(activation[3], "up_offset"));
  if (alpha.value.f == 1.0 || activation->value.i == kSilu) return {};
  return Invalid("alpha", "1 with an activation other than silu", NumberText(alpha.value.f),
                 "leave alpha out, or choose activation=\"silu\"");
}

// NaN stays NaN.
template <class F>
constexpr F ClampAbove(F x, F limit) {
  return x > limit ? limit : x;
}
template <class F>
constexpr F ClampBelow(F x, F limit) {
  return x < limit ? limit : x;
}

// act(gate) * (up + up_offset) with the clamp, for the checked scalars that start at `activation`.
struct Gate {
  explicit Gate(const lz_scalar* activation)
      : function(activation[0].value.i),
        limit(activation[1].given ? activation[1].value.f : std::numeric_limits<double>::infinity()),
        alpha(activation[2].value.f),
        up_offset(activation[3].value.f) {}

  double Activate(double g) const { return Apply(function, ClampAbove(g, limit), alpha); }
  double operator()(double g, double u) const {
    return Activate(g) * (ClampBelow(ClampAbove(u, limit), -limit) + up_offset);
  }

  int64_t function;
  double limit, alpha, up_offset;
};

}  // namespace lz::ops::activation
