// A walk over a range of keys with tiles of attention: up to 64 query rows of one KV head each. Include only from files
// that Highway compiles per target (after kernels/simd.h).
#if defined(LZ_KERNELS_ATTENTION_TILE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ATTENTION_TILE_H_
#undef LZ_KERNELS_ATTENTION_TILE_H_
#else
#define LZ_KERNELS_ATTENTION_TILE_H_
#endif

#include <cmath>

#include "kernels/attention/amx.h"
#include "kernels/attention/packed.h"
#include "kernels/attention/products.h"
#include "kernels/attention/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::attn {

template <class T>
const T* RowPointer(const attention::Rows& x, int64_t outer, int64_t seq, int64_t head) {
  return reinterpret_cast<const T*>(x.data) + (outer * x.outer + seq * x.seq + head * x.head);
}

template <class T>
bool UsesAmx(const Tile<T>& t) {
  return t.walk->amx && !t.exact;
}

// Sets scaled queries in the keys' pair order, followed by zeros (amx.h: unscaled), and the empty state.
template <class T>
void StartTile(Tile<T>& t) {
  const Walk<T>& w = *t.walk;
  std::fill_n(t.m, t.rows, -kInf);
  std::fill_n(t.l, t.rows, 0.0f);
  if constexpr (std::is_same_v<T, BF16>) {
    if (UsesAmx(t)) return AmxStart(t);
  }
  const auto scale = hn::Set(kD, w.p.scale * kUnit<T> * UnitOf(w.p, w.p.k_scale, t.row[0].head));
  const int64_t d = w.p.d_qk;
  WithFloatType(w.p.dtype, [&](auto type) HWY_ATTR {
    for (int64_t r = 0; r < t.rows; ++r) {
      const auto* q = RowPointer<decltype(type)>(w.p.q, t.row[r].batch, t.row[r].pos, t.row[r].head);
      for (int64_t i = 0; i < d; i += kPair) {
        V lo, hi;
        LoadAs<T>(q + i, d - i, lo, hi);
        StorePair(hn::Mul(lo, scale), hn::Mul(hi, scale), t.q + r * w.dq + i);
      }
    }
  });
  const int64_t padded = (t.rows + 3) / 4 * 4;
  if (w.packed) {  // Gemm processes whole groups of four rows
    for (int64_t r = t.rows; r < padded; ++r) {
      t.alpha[r] = 1;
      std::fill_n(t.q + r * w.dq, w.dq, 0.0f);
    }
  }
  std::fill_n(t.o, padded * w.dv, 0.0f);
}

// The rows of keys [k0, k0 + n) of a stretch.
template <class T>
void FindRows(const Problem& p, const Stretch& at, int64_t k0, int64_t n, const T** ks, const T** vs) {
  if (p.paging == attention::Paging::kNone) {
    const T* k = RowPointer<T>(p.k, at.batch, k0, at.kv_head);
    const T* v = RowPointer<T>(p.v, at.batch, k0, at.kv_head);
    for (int64_t j = 0; j < n; ++j, k += p.k.seq, v += p.v.seq) ks[j] = k, vs[j] = v;
    return;
  }
  int64_t page = k0 / p.page_size, slot = k0 % p.page_size;
  for (int64_t j = 0; j < n; ++page, slot = 0) {
    const int64_t block = at.seq.pages[page * p.pages_stride];
    const T* k = RowPointer<T>(p.k, block, slot, at.kv_head);
    const T* v = RowPointer<T>(p.v, block, slot, at.kv_head);
    for (; slot < p.page_size && j < n; ++slot, ++j, k += p.k.seq, v += p.v.seq) ks[j] = k, vs[j] = v;
  }
}

// Sets the rows of keys [k0, k0 + n), of kAhead more, which repeat the last one at the end of the walk, and those to
// prefetch: of the next step, or after the last step of the worker's next walk.
template <class T>
void FindKeys(Walk<T>& w, int64_t k0, int64_t n) {
  const int64_t padded = (n + kAhead - 1) / kAhead * kAhead + kAhead, found = std::min(padded, w.at.end - k0);
  FindRows(w.p, w.at, k0, found, w.k, w.v);
  for (int64_t j = found; j < padded; ++j) w.k[j] = w.k[found - 1], w.v[j] = w.v[found - 1];
  w.next = {};
  if (w.heads == 1) return;
  const bool last = k0 + n >= w.at.end;
  const Stretch& next = last ? w.after : w.at;
  const int64_t begin = last ? next.begin : k0 + n;
  w.next.rows = std::clamp(next.end - begin, int64_t{0}, w.step) * w.heads;
  FindRows(w.p, next, begin, w.next.rows / w.heads, w.next_k, w.next_v);
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
  const Walk<T>& w = *t.walk;
  for (int64_t r = 0; r < t.rows; ++r) {
    const T* v[kBlock];
    float weights[kBlock];
    int64_t count = 0;
    for (int64_t j = 0; j < n; ++j) {
      const float weight = w.s[r * kBlock + j];
      if (weight != -1.0f) v[count] = w.v[j], weights[count++] = weight;
    }
    Weighted<1>(weights, v, t.v_at, count, w.p.d_v, t.o + r * w.dv, w.dv, t.alpha + r, kNothing);
  }
}

// Processes keys [k0, k0 + n) of the walk for tile t.
template <class T>
void Step(Tile<T>& t, int64_t k0, int64_t n) {
  Walk<T>& w = *t.walk;
  if constexpr (std::is_same_v<T, BF16>) {
    if (UsesAmx(t)) {
      AmxLogits(t, n);
      for (int64_t r = 0; r < t.rows; ++r) SoftmaxRow(t, r, k0, n);
      return AmxValues(t, n);
    }
  }
  const Problem& p = w.p;
  const bool packed = w.packed && !t.exact;
  const int64_t padded_rows = (t.rows + 3) / 4 * 4;
  if (packed) {
    PackKeys(w.k, n, p.d_qk, w.kt);
    const int64_t depth = (p.d_qk + kPair - 1) / kPair * kPair;
    Gemm<false>(padded_rows, kPackedBlock, t.q, w.dq, w.kt, kPackedBlock, depth, w.s, kBlock, t.alpha);
  } else {
    // Prefetches keys a few rows ahead, values that are not prefetched yet, and the next step's keys.
    const auto fetch = [&](int64_t j) HWY_ATTR {
      PrefetchRow<3>(w.k[j + kAhead] + t.k_at, p.d_qk);
      if (!w.asked) PrefetchRow<2>(w.v[j] + t.v_at, p.d_v);
      AskNext(w.next_k, p.k.head, p.d_qk, w.heads, w.next.rows, w.next.keys);
    };
    ForRows(t.rows, [&]<int R>(int64_t r) HWY_ATTR {
      constexpr int kG = R == 1 ? 2 : 1;
      const float* q = t.q + r * w.dq;
      float* s = w.s + r * kBlock;
      r == 0 ? Dots<R, kG>(q, w.dq, w.k, t.k_at, n, p.d_qk, s, fetch)
             : Dots<R, kG>(q, w.dq, w.k, t.k_at, n, p.d_qk, s, kNothing);
    });
  }
  for (int64_t r = 0; r < t.rows; ++r) SoftmaxRow(t, r, k0, n);
  if (t.exact) {
    WeightedExact(t, n);
  } else if (packed) {
    const int64_t width = (p.d_v + kPair - 1) / kPair * kPair;
    PackValues(w.v, n, p.d_v, w.vf, w.dv);
    Gemm<true>(padded_rows, width, w.s, kBlock, w.vf, w.dv, n, t.o, w.dv, t.alpha);
  } else {
    ForRows(t.rows, [&]<int R>(int64_t r) HWY_ATTR {
      const auto fetch = [&](int64_t)
                             HWY_ATTR { AskNext(w.next_v, p.v.head, p.d_v, w.heads, w.next.rows, w.next.values); };
      const float* s = w.s + r * kBlock;
      float* o = t.o + r * w.dv;
      r == 0 && w.next.rows > 0 ? Weighted<R>(s, w.v, t.v_at, n, p.d_v, o, w.dv, t.alpha + r, fetch)
                                : Weighted<R>(s, w.v, t.v_at, n, p.d_v, o, w.dv, t.alpha + r, kNothing);
    });
  }
}

template <class T>
bool Finite(const Tile<T>& t) {
  auto bad = hn::Zero(kD);  // x - x is 0 for finite x, otherwise NaN
  for (int64_t i = 0; i < t.rows * t.walk->dv; i += kL) {
    const auto x = hn::Load(kD, t.o + i);
    bad = hn::Add(bad, hn::Sub(x, x));
  }
  return hn::GetLane(hn::SumOfLanes(kD, bad)) == 0;
}

// The state of the rows of a walk's tiles, one per head. An infinity or NaN in a tile's result may come from a masked
// value that was weighted by 0: then the tile is computed again, skipping masked keys.
template <class T>
void RunTiles(Walk<T>& w, Tile<T>* tiles) {
  const AmxScope tiles_of_thread(w.amx);
  const auto run = [&](Tile<T>* first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) StartTile(first[i]);
    for (int64_t k0 = w.at.begin; k0 < w.at.end; k0 += w.step) {
      const int64_t n = std::min(w.step, w.at.end - k0);
      FindKeys(w, k0, n);
      for (int64_t i = 0; i < count; ++i) Step(first[i], k0, n);
      w.asked = w.next.rows > 0;
    }
  };
  run(tiles, w.heads);
  for (int64_t i = 0; i < w.heads; ++i) {
    if (Finite(tiles[i])) continue;
    tiles[i].exact = true;
    run(tiles + i, 1);
  }
}

inline float* LseOf(const Problem& p, const Row& row) {
  return p.lse + (row.batch * p.lse_b + row.head * p.lse_h + row.pos * p.lse_s);
}

// Output and lse of one row from its state.
template <class T>
void FinishRow(const Problem& p, const Row& row, const float* o, float m, float l) {
  const int64_t size = ByteSize(p.dtype);
  char* out = p.out.data + (row.batch * p.out.outer + row.pos * p.out.seq + row.head * p.out.head) * size;
  const float sink = p.sinks ? float(View(*p.sinks).Get({row.head}) + row.shift) : -kInf;
  float scale = 1.0f / l;
  if (l == 0 || (sink == kInf && !std::isnan(l))) {  // no visible key, or the sink has all the weight: 0 whatever the
                                                     // values are
    std::memset(out, 0, size_t(p.d_v * size));
    if (p.lse) *LseOf(p, row) = l == 0 ? -kInf : float(m + std::log(l) - row.shift);
    return;
  }
  if (p.sinks) {
    const float top = sink > m ? sink : m;
    scale = std::exp(m - top) / (l * std::exp(m - top) + std::exp(sink - top));
  }
  const auto factor = hn::Set(kD, scale * kUnit<T> * UnitOf(p, p.v_scale, row.head));
  WithFloatType(p.dtype, [&](auto type) HWY_ATTR {
    auto* to = reinterpret_cast<decltype(type)*>(out);
    for (int64_t i = 0; i < p.d_v; i += kPair) {
      const auto lo = hn::Mul(hn::Load(kD, o + i), factor), hi = hn::Mul(hn::Load(kD, o + i + kL), factor);
      StoreAs<T>(lo, hi, to + i, p.d_v - i);
    }
  });
  if (p.lse) *LseOf(p, row) = float(m + std::log(l) - row.shift);
}

}  // namespace lz::HWY_NAMESPACE::attn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
