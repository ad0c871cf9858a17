// Reference of attention.gated_delta_rule: position by position in FP64, any strides, any float dtype. The state is
// rounded once, after the last position.
#include "ops/attention/gated_delta_rule.h"

#include <cmath>
#include <vector>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_gated_delta_rule;

// A row of queries or keys, divided by its L2 norm if the call requires it.
std::vector<double> Row(const View& rows, int64_t b, int64_t t, int64_t head, const lz_scalar& l2_eps, double factor) {
  std::vector<double> row(size_t(rows.size(-1)));
  double sum = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = rows.Get({b, t, head, int64_t(i)});
    sum += row[i] * row[i];
  }
  if (l2_eps.given) factor /= std::sqrt(sum + l2_eps.value.f);
  for (double& x : row) x *= factor;
  return row;
}

struct Gates {
  double decay, beta;
};

Gates GatesAt(const lz_kernel_args* args, int64_t b, int64_t t, int64_t h) {
  const View gs(args->tensors[kG]), betas(args->tensors[kBeta]), a_log(args->tensors[kALog]);
  const View dt_bias(args->tensors[kDtBias]);
  double g = gs.Get({b, t, h}), beta = betas.Get({b, t, h});
  if (a_log.given()) {
    const double x = g + (dt_bias.given() ? dt_bias.Get({h}) : 0.0);
    g = -std::exp(a_log.Get({h})) * (x > 30 ? x : std::log1p(std::exp(x)));
    beta = 1 / (1 + std::exp(-beta));
  }
  return {std::exp(g), beta * args->scalars[kBetaScale].value.f};
}

void Run(const lz_kernel_args* args, int64_t b, int64_t h) {
  const View query(args->tensors[kQuery]), key(args->tensors[kKey]), value(args->tensors[kValue]);
  const View state(args->tensors[kState]), output(args->tensors[kOutput]);
  const int64_t d_k = state.size(2), d_v = state.size(3), head = h / (state.size(1) / query.size(2));
  const lz_scalar& l2_eps = args->scalars[kL2Eps];
  std::vector<double> s(size_t(d_k * d_v)), delta(size_t(d_v), 0.0);
  for (int64_t i = 0; i < d_k * d_v; ++i) s[size_t(i)] = state.Get({b, h, i / d_v, i % d_v});
  for (int64_t t = 0; t < query.size(1); ++t) {
    const std::vector<double> q = Row(query, b, t, head, l2_eps, args->scalars[kScale].value.f);
    const std::vector<double> k = Row(key, b, t, head, l2_eps, 1);
    const Gates gates = GatesAt(args, b, t, h);
    for (double& x : s) x *= gates.decay;
    for (int64_t j = 0; j < d_v; ++j) {
      double seen = 0;
      for (int64_t i = 0; i < d_k; ++i) seen += s[size_t(i * d_v + j)] * k[size_t(i)];
      delta[size_t(j)] = gates.beta * (value.Get({b, t, h, j}) - seen);
    }
    for (int64_t i = 0; i < d_k * d_v; ++i) s[size_t(i)] += k[size_t(i / d_v)] * delta[size_t(i % d_v)];
    for (int64_t j = 0; j < d_v; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < d_k; ++i) sum += s[size_t(i * d_v + j)] * q[size_t(i)];
      output.Set({b, t, h, j}, sum);
    }
  }
  for (int64_t i = 0; i < d_k * d_v; ++i) state.Set({b, h, i / d_v, i % d_v}, s[size_t(i)]);
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& state = args->tensors[kState];
  for (int64_t b = 0; b < state.shape[0]; ++b) {
    for (int64_t h = 0; h < state.shape[1]; ++h) Run(args, b, h);
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.attention.gated_delta_rule", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
