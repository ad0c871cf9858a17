// FP64 arithmetic of attention, shared by the attention references. Correct first, not fast.
//   AttendRows(options, shape, dot(i, h, j, kv), bias(h, i, j), value(j, kv, c), write(i, h, output, lse));
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "core/view.h"
#include "ops/common/reference.h"

namespace lz::ops::attention {

inline constexpr double kHidden = -std::numeric_limits<double>::infinity();  // the logit of a masked key

// Sum of a[i] b[i] over the last axes, from element offsets on; b is stored in `unit`.
inline double Dot(const View& a, int64_t a_offset, const View& b, int64_t b_offset, int64_t n, double unit = 1) {
  double sum = 0;
  if (n == 0) return sum;
  const int64_t a_stride = a.stride(-1), b_stride = b.stride(-1);
  for (int64_t i = 0; i < n; ++i) sum += a.Load(a_offset + i * a_stride) * b.Load(b_offset + i * b_stride);
  return unit * sum;
}

inline double Softcap(double z, double cap) { return cap > 0 ? cap * std::tanh(z / cap) : z; }

class AttentionRow {
 public:
  explicit AttentionRow(int64_t d_v) : out_(size_t(d_v)) {}

  // logit(j) and value(j, c) for j in [begin, end); values of masked keys are not read. sink = kHidden: none. Returns
  // the lse; the output stays in output().
  template <class Logit, class Value>
  double Attend(int64_t begin, int64_t end, double sink, Logit&& logit, Value&& value) {
    z_.clear();
    double top = kHidden;  // NaN after the first NaN logit
    for (int64_t j = begin; j < end; ++j) {
      z_.push_back(logit(j));
      if (!std::isnan(top) && !(z_.back() <= top)) top = z_.back();
    }
    out_.assign(out_.size(), 0.0);
    top_ = top, sum_ = 0;
    if (top == kHidden) return kHidden;
    for (const double z : z_) sum_ += z == kHidden ? 0.0 : std::exp(z - top);
    const double lse = top + std::log(sum_);
    if (sink == -kHidden && std::isfinite(top)) return lse;
    const double peak = std::isnan(sink) || sink > top ? sink : top;
    const double total = sum_ * std::exp(top - peak) + (sink == kHidden ? 0.0 : std::exp(sink - peak));
    for (int64_t j = begin; j < end; ++j) {
      const double z = z_[size_t(j - begin)];
      if (z == kHidden) continue;
      const double weight = std::exp(z - peak) / total;
      for (size_t c = 0; c < out_.size(); ++c) out_[c] += weight * value(j, int64_t(c));
    }
    return lse;
  }

  std::span<double> output() { return out_; }
  double top() const { return top_; }  // largest logit of the last Attend
  double sum() const { return sum_; }  // sum of exp(logit - top)

 private:
  std::vector<double> z_, out_;
  double top_ = kHidden, sum_ = 0;
};

struct KeyRange {
  int64_t begin, end;
};
// The keys below n_kv that a row at `position` attends to under causality and window (keys up to its own; <= 0:
// no window).
inline KeyRange VisibleKeys(bool causal, int64_t window, int64_t position, int64_t n_kv) {
  const int64_t end = causal || window > 0 ? std::clamp<int64_t>(position + 1, 0, n_kv) : n_kv;
  const int64_t begin = window > 0 && window <= position ? std::min(position - window + 1, end) : 0;
  return {begin, end};
}

struct AttentionOptions {
  double scale = 1, softcap = 0;  // 0: no cap
  bool causal = false;
  int64_t window = -1;
  const lz_tensor *sinks = nullptr, *slopes = nullptr;  // may be absent
};
struct AttentionShape {
  int64_t n_q, n_kv, h_q, h_kv, d_v;
};

// Rows of one sequence, in the order heads, rows. Row i has position i + n_kv - n_q.
template <class DotOf, class Bias, class Value, class Write>
void AttendRows(const AttentionOptions& o, const AttentionShape& n, DotOf&& dot, Bias&& bias, Value&& value,
                Write&& write) {
  AttentionRow row(n.d_v);
  const bool sunk = o.sinks && o.sinks->ndim >= 0, sloped = o.slopes && o.slopes->ndim >= 0;
  for (int64_t h = 0; h < n.h_q; ++h) {
    const int64_t kv = h / (n.h_q / n.h_kv);
    const double sink = sunk ? View(*o.sinks).Get({h}) : kHidden, slope = sloped ? View(*o.slopes).Get({h}) : 0.0;
    for (int64_t i = 0; i < n.n_q; ++i) {
      const int64_t p = i + n.n_kv - n.n_q;
      const KeyRange seen = VisibleKeys(o.causal, o.window, p, n.n_kv);
      const double lse = row.Attend(
          seen.begin, seen.end, sink,
          [&](int64_t j) {
            const double added = bias(h, i, j);
            if (added == kHidden) return kHidden;
            const double z = Softcap(o.scale * dot(i, h, j, kv), o.softcap);
            return (sloped ? z - slope * double(std::abs(p - j)) : z) + added;
          },
          [&](int64_t j, int64_t c) { return value(j, kv, c); });
      write(i, h, row, lse);
    }
  }
}

constexpr auto kNoBias = [](int64_t, int64_t, int64_t) { return 0.0; };

// A mask that may lack leading axes, and whose axes may be 1.
class Mask4 {
 public:
  explicit Mask4(const lz_tensor& t) : view_(t), given_(view_.given()), boolean_(view_.dtype() == DType::kBool) {
    for (int i = 0; i < view_.ndim(); ++i) {
      const int axis = 4 - view_.ndim() + i;
      if (view_.size(i) != 1) strides_[size_t(axis)] = view_.stride(i);
    }
  }
  // The bias that is added to the key's logit: kHidden if it is masked.
  double At(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!given_) return 0.0;
    const int64_t at = b * strides_[0] + h * strides_[1] + i * strides_[2] + j * strides_[3];
    if (boolean_) return view_.LoadInt(at) != 0 ? 0.0 : kHidden;
    return view_.Load(at);
  }

 private:
  View view_;
  bool given_, boolean_;
  std::array<int64_t, 4> strides_ = {};
};

// query (b, s_q, h_q, d_qk) over key (b, s_kv, h_kv, d_qk) and value (b, s_kv, h_kv, d_v).
struct DenseTensors {
  const lz_tensor &query, &key, &value, &mask, &output, &lse;
};
inline void AttendDense(const AttentionOptions& o, const DenseTensors& t) {
  const View q(t.query), k(t.key), v(t.value), out(t.output), lse_out(t.lse);
  const Mask4 mask(t.mask);
  const AttentionShape n = {q.size(1), k.size(1), q.size(2), k.size(2), v.size(3)};
  for (int64_t b = 0; b < q.size(0); ++b) {
    AttendRows(
        o, n,
        [&](int64_t i, int64_t h, int64_t j, int64_t kv) {
          return Dot(q, b * q.stride(0) + i * q.stride(1) + h * q.stride(2), k,
                     b * k.stride(0) + j * k.stride(1) + kv * k.stride(2), q.size(3));
        },
        [&](int64_t h, int64_t i, int64_t j) { return mask.At(b, h, i, j); },
        [&](int64_t j, int64_t kv, int64_t c) {
          return v.Get({b, j, kv, c});
        },
        [&](int64_t i, int64_t h, AttentionRow& row, double lse) {
          for (int64_t c = 0; c < n.d_v; ++c) out.Set({b, i, h, c}, row.output()[size_t(c)]);
          if (lse_out.given()) lse_out.Set({b, h, i}, lse);
        });
  }
}

// Packed rows [first_q, end_q) over packed keys [first_kv, first_kv + n_kv): one sequence.
struct PackedTensors {
  const lz_tensor &query, &key, &value, &output, &lse;
};
inline void AttendPacked(const AttentionOptions& o, const PackedTensors& t, int64_t first_q, int64_t end_q,
                         int64_t first_kv, int64_t n_kv) {
  const View q(t.query), k(t.key), v(t.value), out(t.output), lse_out(t.lse);
  AttendRows(
      o, {end_q - first_q, n_kv, q.size(1), k.size(1), v.size(2)},
      [&](int64_t i, int64_t h, int64_t j, int64_t kv) {
        return Dot(q, (first_q + i) * q.stride(0) + h * q.stride(1), k, (first_kv + j) * k.stride(0) + kv * k.stride(1),
                   q.size(2));
      },
      kNoBias,
      [&](int64_t j, int64_t kv, int64_t c) {
        return v.Get({first_kv + j, kv, c});
      },
      [&](int64_t i, int64_t h, AttentionRow& row, double lse) {
        for (int64_t c = 0; c < v.size(2); ++c) out.Set({first_q + i, h, c}, row.output()[size_t(c)]);
        if (lse_out.given()) lse_out.Set({first_q + i, h}, lse);
      });
}
// Packed rows that belong to no sequence: output 0, lse -inf.
inline void ClearPacked(const lz_tensor& output, const lz_tensor& lse, int64_t first) {
  const View out(output), lse_out(lse);
  for (int64_t i = first; i < out.size(0); ++i) {
    for (int64_t h = 0; h < out.size(1); ++h) {
      for (int64_t c = 0; c < out.size(2); ++c) out.Set({i, h, c}, 0.0);
      if (lse_out.given()) lse_out.Set({i, h}, kHidden);
    }
  }
}

// True if offsets (CSR row pointers) start at 0, never decrease and end at most at `limit`.
inline bool OffsetsValid(const View& offsets, int64_t limit) {
  int64_t last = 0;
  for (int64_t i = 0; i < offsets.size(0); ++i) {
    const int64_t v = offsets.GetInt({i});
    if (i == 0 ? v != 0 : v < last) return false;
    last = v;
  }
  return last <= limit;
}
inline bool LengthsWithin(const View& offsets, int64_t bound) {
  for (int64_t s = 0; s + 1 < offsets.size(0); ++s) {
    if (offsets.GetInt({s + 1}) - offsets.GetInt({s}) > bound) return false;
  }
  return true;
}

}  // namespace lz::ops::attention
