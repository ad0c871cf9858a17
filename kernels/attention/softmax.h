// Walks and tiles of attention, their rows, and the online softmax of one row in FP32: caps, biases, masks and visible
// ranges. A row's state is (o, m, l): the weighted sum of values, the largest logit and the sum of exp(logit - m).
// Include only from files that Highway compiles per target (after kernels/simd.h).
#if defined(LZ_KERNELS_ATTENTION_SOFTMAX_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ATTENTION_SOFTMAX_H_
#undef LZ_KERNELS_ATTENTION_SOFTMAX_H_
#else
#define LZ_KERNELS_ATTENTION_SOFTMAX_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/attention/pairs.h"
#include "kernels/simd_math.h"
#include "ops/common/kv_rows.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::attn {

using attention::kRows;
using attention::Problem;
using attention::Range;
using attention::Sequence;
using attention::Stretch;
inline constexpr float kInf = std::numeric_limits<float>::infinity();

struct Row {
  int64_t batch, pos, head;
  Range keys;  // visible
  int64_t at;  // its position among the keys
  float slope;
  float base;    // distances are relative to that of the visible key with the largest distance bias
  double shift;  // slope * base: the logits, and so m, are too large by this
};

// A row that is prefetched for the next step.
struct Asked {
  int64_t key = 0, head = 0;
};

// The state of a worker's walk over its keys, for KV heads [at.kv_head, at.kv_head + heads) together.
template <class T>
struct Walk {
  Walk(const Problem& problem, const attention::Plan& plan, const Stretch& keys, const Stretch& next)
      : p(problem),
        at(keys),
        after(next),
        packed(plan.packed),
        heads(plan.heads),
        step(plan.step),
        dq(attention::Padded(problem.d_qk)),
        dv(attention::Padded(problem.d_v)) {}

  const Problem& p;
  Stretch at, after;         // after: the next walk of this worker
  bool packed, amx = false;  // amx: packed tiles are multiplied by amx.h
  int64_t heads, step;
  int64_t dq, dv;
  float *s, *kt, *vf;  // [rows][kBlock], [dq][kPackedBlock], [kPackedBlock][dv]; amx.h packs kBlock keys into these
  // The rows of one step's keys and values, and of the next kAhead keys, of the first head.
  const T* k[kBlock + kAhead];
  const T* v[kBlock + kAhead];
  // The rows of the next step: their number, those of the first head, and which of them were prefetched.
  const T* next_k[kBlock];
  const T* next_v[kBlock];
  struct {
    int64_t rows = 0;
    Asked keys, values;
  } next;
  bool asked = false;  // this step's rows were prefetched during the previous one
};

// The rows of one KV head.
template <class T>
struct Tile {
  Walk<T>* walk;
  int64_t rows;
  int64_t k_at, v_at;  // offset of its elements in the walk's rows; 0 if packed: the walk has one head
  float *q, *o;        // [rows][dq], [rows][dv]
  float *m, *l;        // [rows]
  bool exact = false;  // skip invisible keys one by one instead of weighting them by 0
  float alpha[kRows];
  Row row[kRows];
};

// Row r of unit (batch, KV head, tile): rows run over the group's heads first, then over positions.
inline Row MakeRow(const Problem& p, const Sequence& seq, int64_t batch, int64_t kv_head, int64_t r) {
  const int64_t pos = p.s_q == 1 ? 0 : r / p.group, head = kv_head * p.group + r - pos * p.group;
  Row row = {batch, pos, head, VisibleTo(p, seq, pos), pos + seq.length - p.s_q, 0, 0, 0};
  if (!p.slopes) return row;
  row.slope = float(View(*p.slopes).Get({head}));
  if (!std::isfinite(row.slope)) return row;
  // If all keys are far away, logits with the whole bias would be large and lose the differences between keys.
  const int64_t before = row.at - (row.keys.hi - 1), after = row.keys.lo - row.at;
  row.base = float(row.slope < 0 ? std::max(std::abs(before), std::abs(after)) : std::max({before, after, int64_t{0}}));
  row.shift = double(row.slope) * row.base;
  return row;
}

// The scale of the KV head of a query head.
inline float UnitOf(const Problem& p, const lz_tensor* scale, int64_t head) {
  return scale ? ops::kv::ScaleOf(View(*scale), head / p.group) : 1.0f;
}

// mask[j] = bias of logit k0 + j; -inf masks the key.
inline void ReadMask(const Problem& p, const Row& row, int64_t k0, int64_t n, float* mask) {
  const View view(*p.mask);
  const int64_t stride = p.mask_strides[3];
  const int64_t at = row.batch * p.mask_strides[0] + row.head * p.mask_strides[1] + row.pos * p.mask_strides[2];
  const int64_t first = at + k0 * stride;
  if (view.dtype() == DType::kBool) {
    const uint8_t* bits = view.data<uint8_t>() + first;
    for (int64_t j = 0; j < n; ++j) mask[j] = bits[j * stride] ? 0.0f : -kInf;
  } else if (view.dtype() == DType::kF32) {
    const float* values = view.data<float>() + first;
    for (int64_t j = 0; j < n; ++j) mask[j] = values[j * stride];
  } else {
    for (int64_t j = 0; j < n; ++j) mask[j] = float(view.Load(first + j * stride));
  }
}

// Applies soft cap, distance bias and mask to one row's logits.
HWY_INLINE void Modify(const Problem& p, const Row& row, int64_t k0, int64_t n, float* s) {
  HWY_ALIGN float mask[kBlock] = {};
  if (p.mask) ReadMask(p, row, k0, n, mask);
  const auto cap = hn::Set(kD, p.softcap), inverse = hn::Set(kD, p.softcap > 0 ? 1 / p.softcap : 0.0f);
  const auto slope = hn::Set(kD, row.slope), base = hn::Set(kD, row.base), hidden = hn::Set(kD, -kInf);
  for (int64_t j = 0; j < n; j += kL) {
    auto z = hn::Load(kD, s + j);
    if (p.softcap > 0) z = hn::Mul(cap, Tanh(kD, hn::Mul(z, inverse)));
    if (p.slopes) {
      const auto distance = hn::Sub(hn::Set(kD, float(row.at - k0)), hn::Iota(kD, float(j)));
      z = hn::NegMulAdd(slope, hn::Sub(hn::Abs(distance), base), z);
    }
    if (p.mask) {
      const auto bias = hn::Load(kD, mask + j);
      z = hn::IfThenElse(hn::Eq(bias, hidden), hidden, hn::Add(z, bias));
    }
    hn::Store(z, kD, s + j);
  }
}

// Turns the logits of row r over [k0, k0 + n) into weights and updates (m, l); the caller scales o by alpha[r]. In
// exact mode a masked key's weight is -1.
template <class T>
void SoftmaxRow(Tile<T>& t, int64_t r, int64_t k0, int64_t n) {
  const Row& row = t.row[r];
  const Problem& p = t.walk->p;
  float* s = t.walk->s + r * kBlock;
  if (p.mask || p.slopes || p.softcap > 0) Modify(p, row, k0, n, s);
  const auto hidden = hn::Set(kD, -kInf);
  const int64_t lo = row.keys.lo - k0, hi = std::min(row.keys.hi - k0, n);
  auto top = hidden;
  if (lo <= 0 && hi == n && n % kL == 0) {
    for (int64_t j = 0; j < n; j += kL) top = hn::Max(top, hn::Load(kD, s + j));
  } else {
    const auto before = [&](int64_t key, int64_t j)
                            HWY_ATTR { return hn::FirstN(kD, size_t(std::clamp(key - j, int64_t{0}, int64_t{kL}))); };
    for (int64_t j = 0; j < n; j += kL) {
      const auto seen = hn::AndNot(before(lo, j), before(hi, j));
      const auto z = hn::IfThenElse(seen, hn::Load(kD, s + j), hidden);
      hn::Store(z, kD, s + j);
      top = hn::Max(top, z);
    }
  }
  const float m = std::max(t.m[r], hn::GetLane(hn::MaxOfLanes(kD, top)));
  const auto safe = hn::Set(kD, m == -kInf ? 0.0f : m);
  auto sum = hn::Zero(kD);
  for (int64_t j = 0; j < n; j += kL) {
    const auto z = hn::Load(kD, s + j);
    auto w = Exp(kD, hn::Sub(z, safe));
    sum = hn::Add(sum, w);
    if (t.exact) w = hn::IfThenElse(hn::Eq(z, hidden), hn::Set(kD, -1.0f), w);
    hn::Store(w, kD, s + j);
  }
  t.alpha[r] = t.m[r] == m ? 1.0f : hn::GetLane(Exp(kD, hn::Sub(hn::Set(kD, t.m[r]), safe)));
  t.l[r] = t.l[r] * t.alpha[r] + hn::GetLane(hn::SumOfLanes(kD, sum));
  t.m[r] = m;
}

}  // namespace lz::HWY_NAMESPACE::attn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
