// One tile of attention: up to 64 query rows of one KV head over a range of keys, with an online softmax in FP32.
// A row's state is (o, m, l): the weighted sum of values, the largest logit and the sum of exp(logit - m).
// Include inside HWY_NAMESPACE's file only (after kernels/attention/micro.h).
#if defined(LZ_KERNELS_ATTENTION_TILE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ATTENTION_TILE_H_
#undef LZ_KERNELS_ATTENTION_TILE_H_
#else
#define LZ_KERNELS_ATTENTION_TILE_H_
#endif

#include <cmath>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "kernels/attention/micro.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace attn {

using attention::kRows;
using attention::Problem;
using attention::Range;
using attention::Sequence;
inline constexpr float kInf = std::numeric_limits<float>::infinity();

struct Row {
  int64_t batch, pos, head;
  Range keys;  // visible
  int64_t at;  // its position among the keys
  float slope;
};

template <class T>
struct Tile {
  Tile(const Problem& problem, const Sequence& sequence, int64_t head, int64_t num_rows, bool pack)
      : p(problem), seq(sequence), kv_head(head), rows(num_rows), packed(pack) {}

  const Problem& p;
  Sequence seq;
  int64_t kv_head, rows;
  bool packed;
  float *q, *o, *s, *kt, *vf;  // [rows][dq], [rows][dv], [rows][kBlock], [dq][kBlock], [kBlock][dv]; dq, dv padded
  float *m, *l;                // [rows]
  int64_t dq, dv;
  bool exact = false;  // skip invisible keys one by one instead of weighting them by 0
  Row row[kRows];
  float alpha[kRows];
  const T* k[kBlock + 8];
  const T* v[kBlock + 8];
};

// Row r of unit (batch, KV head, tile): rows run over the group's heads first, then over positions.
inline Row MakeRow(const Problem& p, const Sequence& seq, int64_t batch, int64_t kv_head, int64_t r) {
  const int64_t pos = p.s_q == 1 ? 0 : r / p.group, head = kv_head * p.group + r - pos * p.group;
  const float slope = p.slopes ? float(View(*p.slopes).Get({head})) : 0.0f;
  return {batch, pos, head, VisibleTo(p, seq, pos), pos + seq.length - p.s_q, slope};
}

template <class T>
const T* RowPointer(const attention::Rows& x, int64_t outer, int64_t seq, int64_t head) {
  return reinterpret_cast<const T*>(x.data) + (outer * x.outer + seq * x.seq + head * x.head);
}

// Scaled queries in pair order, zeros behind them; the empty state.
template <class T>
void StartTile(Tile<T>& t) {
  const auto scale = hn::Set(kD, t.p.scale);
  const int64_t d = t.p.d_qk;
  for (int64_t r = 0; r < t.rows; ++r) {
    const T* q = RowPointer<T>(t.p.q, t.row[r].batch, t.row[r].pos, t.row[r].head);
    for (int64_t i = 0; i < d; i += kPair) {
      V lo, hi;
      i + kPair <= d ? LoadPair(q + i, lo, hi) : LoadPairN(q + i, d - i, lo, hi);
      StorePair(hn::Mul(lo, scale), hn::Mul(hi, scale), t.q + r * t.dq + i);
    }
    t.m[r] = -kInf;
    t.l[r] = 0;
  }
  const int64_t padded = (t.rows + 3) / 4 * 4;
  if (t.packed) {  // Gemm works on whole groups of four rows
    for (int64_t r = t.rows; r < padded; ++r) {
      t.alpha[r] = 1;
      std::fill_n(t.q + r * t.dq, t.dq, 0.0f);
    }
  }
  std::fill_n(t.o, padded * t.dv, 0.0f);
}

// Pointers to keys [k0, k0 + n); up to the next multiple of 8 they repeat the last.
template <class T>
void FindKeys(Tile<T>& t, int64_t k0, int64_t n) {
  const Problem& p = t.p;
  if (p.paging == attention::Paging::kNone) {
    const T* k = RowPointer<T>(p.k, t.row[0].batch, k0, t.kv_head);
    const T* v = RowPointer<T>(p.v, t.row[0].batch, k0, t.kv_head);
    for (int64_t j = 0; j < n; ++j, k += p.k.seq, v += p.v.seq) t.k[j] = k, t.v[j] = v;
  } else {
    int64_t page = k0 / p.page_size, slot = k0 % p.page_size;
    for (int64_t j = 0; j < n; ++page, slot = 0) {
      const int64_t block = t.seq.pages[page * p.pages_stride];
      const T* k = RowPointer<T>(p.k, block, slot, t.kv_head);
      const T* v = RowPointer<T>(p.v, block, slot, t.kv_head);
      for (; slot < p.page_size && j < n; ++slot, ++j, k += p.k.seq, v += p.v.seq) t.k[j] = k, t.v[j] = v;
    }
  }
  for (int64_t j = n; j % 8; ++j) t.k[j] = t.k[n - 1];
}

// mask[j] = what is added to logit k0 + j; -inf hides the key.
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

// Soft cap, distance bias and mask of one row's logits.
HWY_INLINE void Modify(const Problem& p, const Row& row, int64_t k0, int64_t n, float* s) {
  HWY_ALIGN float mask[kBlock] = {};
  if (p.mask) ReadMask(p, row, k0, n, mask);
  const auto cap = hn::Set(kD, p.softcap), inverse = hn::Set(kD, p.softcap > 0 ? 1 / p.softcap : 0.0f);
  const auto slope = hn::Set(kD, row.slope), hidden = hn::Set(kD, -kInf);
  for (int64_t j = 0; j < n; j += kL) {
    auto z = hn::Load(kD, s + j);
    if (p.softcap > 0) {
      const auto x = hn::Mul(z, inverse);
      z = hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(cap, hn::Tanh(kD, x)));
    }
    if (p.slopes) {
      const auto distance = hn::Sub(hn::Set(kD, float(row.at - k0)), hn::Iota(kD, float(j)));
      z = hn::NegMulAdd(slope, hn::Abs(distance), z);
    }
    if (p.mask) {
      const auto bias = hn::Load(kD, mask + j);
      z = hn::IfThenElse(hn::Eq(bias, hidden), hidden, hn::Add(z, bias));
    }
    hn::Store(z, kD, s + j);
  }
}

// Turns the logits of row r over [k0, k0 + n) into weights and moves (m, l) on; o is to be scaled by alpha[r]. In exact
// mode a hidden key's weight is -1.
template <class T>
void SoftmaxRow(Tile<T>& t, int64_t r, int64_t k0, int64_t n) {
  const Row& row = t.row[r];
  float* s = t.s + r * kBlock;
  if (t.p.mask || t.p.slopes || t.p.softcap > 0) Modify(t.p, row, k0, n, s);
  const auto hidden = hn::Set(kD, -kInf);
  const hn::RebindToSigned<D> di;
  const int64_t lo = row.keys.lo - k0, hi = std::min(row.keys.hi - k0, n);
  auto top = hidden;
  if (lo <= 0 && hi == n && n % kL == 0) {
    for (int64_t j = 0; j < n; j += kL) top = hn::Max(top, hn::Load(kD, s + j));
  } else {
    const auto first = hn::Set(di, int32_t(std::clamp(lo, int64_t{0}, kBlock)));
    const auto last = hn::Set(di, int32_t(std::clamp(hi, int64_t{0}, kBlock)));
    for (int64_t j = 0; j < n; j += kL) {
      const auto key = hn::Iota(di, int32_t(j));
      const auto seen = hn::AndNot(hn::Gt(first, key), hn::Gt(last, key));
      const auto z = hn::IfThenElse(hn::RebindMask(kD, seen), hn::Load(kD, s + j), hidden);
      hn::Store(z, kD, s + j);
      top = hn::Max(top, z);
    }
  }
  const float m = std::max(t.m[r], hn::GetLane(hn::MaxOfLanes(kD, top)));
  const auto safe = hn::Set(kD, m == -kInf ? 0.0f : m);
  auto sum = hn::Zero(kD);
  for (int64_t j = 0; j < n; j += kL) {
    const auto z = hn::Load(kD, s + j);
    auto w = ExpNegative(hn::Sub(z, safe));
    sum = hn::Add(sum, w);
    if (t.exact) w = hn::IfThenElse(hn::Eq(z, hidden), hn::Set(kD, -1.0f), w);
    hn::Store(w, kD, s + j);
  }
  t.alpha[r] = t.m[r] == m ? 1.0f : hn::GetLane(ExpNegative(hn::Sub(hn::Set(kD, t.m[r]), safe)));
  t.l[r] = t.l[r] * t.alpha[r] + hn::GetLane(hn::SumOfLanes(kD, sum));
  t.m[r] = m;
}

// Calls f<R>(r) so that R consecutive rows from r are covered, R <= kMaxR.
template <class F>
HWY_INLINE void ForRows(int64_t rows, const F& f) {
  int64_t r = 0;
  for (; r + kMaxR <= rows; r += kMaxR) f.template operator()<kMaxR>(r);
  if (rows - r == 3) f.template operator()<3>(r);
  if (rows - r == 2) f.template operator()<2>(r);
  if (rows - r == 1) f.template operator()<1>(r);
}

template <class T>
void WeightedExact(Tile<T>& t, int64_t n) {
  for (int64_t r = 0; r < t.rows; ++r) {
    const T* v[kBlock];
    float w[kBlock];
    int64_t count = 0;
    for (int64_t j = 0; j < n; ++j) {
      const float weight = t.s[r * kBlock + j];
      if (weight != -1.0f) v[count] = t.v[j], w[count++] = weight;
    }
    Weighted<1>(w, v, count, t.p.d_v, t.o + r * t.dv, t.dv, t.alpha + r);
  }
}

template <class T>
void Step(Tile<T>& t, int64_t k0, int64_t n) {
  const Problem& p = t.p;
  FindKeys(t, k0, n);
  const bool packed = t.packed && !t.exact;
  const int64_t padded_rows = (t.rows + 3) / 4 * 4;
  if (packed) {
    PackKeys(t.k, n, p.d_qk, t.kt);
    const int64_t depth = (p.d_qk + kPair - 1) / kPair * kPair;
    Gemm<false>(padded_rows, kBlock, t.q, t.dq, t.kt, kBlock, depth, t.s, kBlock, t.alpha);
  } else {
    ForRows(t.rows, [&]<int R>(int64_t r)
                        HWY_ATTR { Dots<R, R == 1 ? 2 : 1>(t.q + r * t.dq, t.dq, t.k, n, p.d_qk, t.s + r * kBlock); });
  }
  for (int64_t r = 0; r < t.rows; ++r) SoftmaxRow(t, r, k0, n);
  if (t.exact) {
    WeightedExact(t, n);
  } else if (packed) {
    const int64_t width = (p.d_v + kPair - 1) / kPair * kPair;
    PackValues(t.v, n, p.d_v, t.vf, t.dv);
    Gemm<true>(padded_rows, width, t.s, kBlock, t.vf, t.dv, n, t.o, t.dv, t.alpha);
  } else {
    ForRows(t.rows, [&]<int R>(int64_t r)
                        HWY_ATTR { Weighted<R>(t.s + r * kBlock, t.v, n, p.d_v, t.o + r * t.dv, t.dv, t.alpha + r); });
  }
}

template <class T>
bool Finite(const Tile<T>& t) {
  auto bad = hn::Zero(kD);  // x - x is 0 for finite x, else NaN
  for (int64_t i = 0; i < t.rows * t.dv; i += kL) {
    const auto x = hn::Load(kD, t.o + i);
    bad = hn::Add(bad, hn::Sub(x, x));
  }
  return hn::GetLane(hn::SumOfLanes(kD, bad)) == 0;
}

// The state of all rows over keys [begin, end). An infinity or NaN in the result may stem from a hidden value that was
// weighted by 0: then once more, leaving hidden keys out.
template <class T>
void RunTile(Tile<T>& t, int64_t begin, int64_t end) {
  for (const bool exact : {false, true}) {
    t.exact = exact;
    StartTile(t);
    for (int64_t k0 = begin; k0 < end; k0 += kBlock) Step(t, k0, std::min(kBlock, end - k0));
    if (Finite(t)) return;
  }
}

// Output and lse of one row from its state.
template <class T>
void FinishRow(const Problem& p, const Row& row, const float* o, float m, float l) {
  float scale = l == 0 ? 0.0f : 1.0f / l;
  if (p.sinks && l != 0) {
    const float sink = float(View(*p.sinks).Get({row.head}));
    const float top = sink > m ? sink : m;
    scale = sink == kInf ? 0.0f : std::exp(m - top) / (l * std::exp(m - top) + std::exp(sink - top));
  }
  T* out = const_cast<T*>(RowPointer<T>(p.out, row.batch, row.pos, row.head));
  const auto factor = hn::Set(kD, scale);
  for (int64_t i = 0; i < p.d_v; i += kPair) {
    const auto lo = hn::Mul(hn::Load(kD, o + i), factor), hi = hn::Mul(hn::Load(kD, o + i + kL), factor);
    i + kPair <= p.d_v ? StorePair(lo, hi, out + i) : StorePairN(lo, hi, out + i, p.d_v - i);
  }
  if (p.lse) p.lse[row.batch * p.lse_b + row.head * p.lse_h + row.pos * p.lse_s] = l == 0 ? -kInf : m + std::log(l);
}

}  // namespace attn
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
