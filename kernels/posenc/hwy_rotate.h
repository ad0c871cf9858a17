// Rotations of heads by one position, CPU SIMD: the tables' row is converted once, to FP32 and with signs:
// out[c] = x[c] C[c] + x[partner of c] S[c]. Include only from files that Highway compiles per target.
#if defined(LZ_KERNELS_POSENC_HWY_ROTATE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_POSENC_HWY_ROTATE_H_
#undef LZ_KERNELS_POSENC_HWY_ROTATE_H_
#else
#define LZ_KERNELS_POSENC_HWY_ROTATE_H_
#endif

#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/rows.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {

inline constexpr int64_t kMaxHeadDim = 1024;
using Tag = hn::ScalableTag<float>;

// One position's factors for each rotated column. Whole vectors may be written past the last column.
struct Factors {
  HWY_ALIGN float c[kMaxHeadDim + 2 * hn::MaxLanes(Tag())];
  HWY_ALIGN float s[kMaxHeadDim + 2 * hn::MaxLanes(Tag())];
};

struct Form {
  int64_t d, r, width;
  bool interleaved;
  float sign;
};

// Half-split: S is -sin in the first half and sin in the second. Interleaved: -sin in even columns, sin in odd ones.
template <class T>
void MakeFactors(const T* cos, const T* sin, const Form& form, Factors* f) {
  const Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d)), m = form.r / 2;
  const auto sign = hn::Set(d, form.sign);
  const auto load = [&](const T* p, int64_t i, int64_t n)
                        HWY_ATTR { return n - i >= lanes ? LoadF32(d, p + i) : LoadF32N(d, p + i, size_t(n - i)); };
  if (form.interleaved) {
    const bool per_column = form.width == form.r;
    for (int64_t i = 0; i < form.width; i += lanes) {
      const auto c = load(cos, i, form.width), s = hn::Mul(sign, load(sin, i, form.width));
      if (per_column) {
        hn::StoreU(c, d, f->c + i);
        hn::StoreU(hn::OddEven(s, hn::Neg(s)), d, f->s + i);
      } else {
        hn::StoreInterleaved2(c, c, d, f->c + 2 * i);
        hn::StoreInterleaved2(hn::Neg(s), s, d, f->s + 2 * i);
      }
    }
    return;
  }
  const int64_t second = form.width == form.r ? m : 0;
  for (int64_t i = 0; i < m; i += lanes) {
    hn::StoreU(load(cos, i, m), d, f->c + i);
    hn::StoreU(hn::Neg(hn::Mul(sign, load(sin, i, m))), d, f->s + i);
  }
  for (int64_t i = 0; i < m; i += lanes) {  // after the first half, whose last vector may overlap this one
    hn::StoreU(load(cos + second, i, m), d, f->c + m + i);
    hn::StoreU(hn::Mul(sign, load(sin + second, i, m)), d, f->s + m + i);
  }
}

// bf16 is read as its even and its odd elements (LoadTwo).
template <class T>
inline constexpr bool kEvenAndOdd = hn::MaxLanes(Tag()) > 1 && std::is_same_v<T, BF16>;

// n factors in the order in which LoadTwo reads elements of T.
template <class T>
HWY_INLINE void OrderOf(float* p, int64_t n) {
  if constexpr (kEvenAndOdd<T>) {
    const Tag d;
    const int64_t lanes = int64_t(hn::Lanes(d));
    for (int64_t i = 0; i + 2 * lanes <= n; i += 2 * lanes) {
      hn::Vec<Tag> even, odd;
      hn::LoadInterleaved2(d, p + i, even, odd);
      hn::StoreU(even, d, p + i);
      hn::StoreU(odd, d, p + i + lanes);
    }
  }
}

// All factors, for heads of T.
template <class T>
HWY_INLINE void OrderFactors(const Form& form, Factors* f) {
  const int64_t part = form.interleaved ? form.r : form.r / 2;
  for (int64_t at = 0; at < form.r; at += part) {
    OrderOf<T>(f->c + at, part);
    OrderOf<T>(f->s + at, part);
  }
}

// a C + b S with the factors from `i` on, each product and the sum rounded.
HWY_INLINE hn::Vec<Tag> Turned(hn::Vec<Tag> a, hn::Vec<Tag> b, const Factors& f, int64_t i) {
  const Tag d;
  return hn::Add(hn::Mul(a, hn::LoadU(d, f.c + i)), hn::Mul(b, hn::LoadU(d, f.s + i)));
}

template <class T>
HWY_INLINE void RotateHalves(const T* x, T* out, int64_t m, const Factors& f) {
  const Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 2 * lanes <= m; i += 2 * lanes) {
    const auto a = LoadTwo(d, x + i), b = LoadTwo(d, x + m + i);
    StoreTwo(d, Turned(a.a, b.a, f, i), Turned(a.b, b.b, f, i + lanes), out + i);
    StoreTwo(d, Turned(b.a, a.a, f, m + i), Turned(b.b, a.b, f, m + i + lanes), out + m + i);
  }
  for (; i + lanes <= m; i += lanes) {
    const auto a = LoadF32(d, x + i), b = LoadF32(d, x + m + i);
    StoreF32(d, Turned(a, b, f, i), out + i);
    StoreF32(d, Turned(b, a, f, m + i), out + m + i);
  }
  if (i < m) {
    const size_t rest = size_t(m - i);
    const auto a = LoadF32N(d, x + i, rest), b = LoadF32N(d, x + m + i, rest);
    StoreF32N(d, Turned(a, b, f, i), out + i, rest);
    StoreF32N(d, Turned(b, a, f, m + i), out + m + i, rest);
  }
}

template <class T>
HWY_INLINE void RotatePairs(const T* x, T* out, int64_t r, const Factors& f) {
  const Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  if constexpr (kEvenAndOdd<T>) {
    for (; i + 2 * lanes <= r; i += 2 * lanes) {
      const auto v = LoadTwo(d, x + i);
      StoreTwo(d, Turned(v.a, v.b, f, i), Turned(v.b, v.a, f, i + lanes), out + i);
    }
  }
  const auto rotate = [&](auto v) HWY_ATTR { return Turned(v, hn::Reverse2(d, v), f, i); };
  for (; i + lanes <= r; i += lanes) StoreF32(d, rotate(LoadF32(d, x + i)), out + i);
  if (i < r) {
    const size_t rest = size_t(r - i);
    StoreF32N(d, rotate(LoadF32N(d, x + i, rest)), out + i, rest);
  }
}

// One head of form.d columns; `out` may be `x`.
template <class T>
HWY_INLINE void RotateHead(const T* x, T* out, const Form& form, const Factors& f) {
  if (form.interleaved) {
    RotatePairs(x, out, form.r, f);
  } else {
    RotateHalves(x, out, form.r / 2, f);
  }
  if (form.r < form.d && x != out) std::memcpy(out + form.r, x + form.r, size_t(form.d - form.r) * sizeof(T));
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
