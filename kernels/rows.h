// f of the elements of one or more tensors, row by row, CPU SIMD: the loop of the element-wise kernels, and the pairs
// of vectors that it processes. Include only from files that Highway compiles per target, after kernels/simd.h.
#if defined(LZ_KERNELS_ROWS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ROWS_H_
#undef LZ_KERNELS_ROWS_H_
#else
#define LZ_KERNELS_ROWS_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {

// Two vectors of f32 from 2 x lanes elements, in the cheapest order: for bf16 its even elements and its odd ones. Only
// for sums and elementwise functions, where the order does not matter.
template <class D>
struct Two {
  hn::Vec<D> a, b;
};
template <class D, class T>
HWY_INLINE Two<D> LoadTwo(D d, const T* p) {
  return {LoadF32(d, p), LoadF32(d, p + hn::Lanes(d))};
}
template <class D, class T>
HWY_INLINE void StoreTwo(D d, hn::Vec<D> a, hn::Vec<D> b, T* p) {
  StoreF32(d, a, p);
  StoreF32(d, b, p + hn::Lanes(d));
}
#if HWY_TARGET != HWY_SCALAR
template <class D>
HWY_INLINE Two<D> LoadTwo(D d, const BF16* p) {
  const hn::RebindToUnsigned<D> d32;
  const auto pairs = hn::BitCast(d32, hn::LoadU(hn::Repartition<uint16_t, D>(), &p->bits));
  return {hn::BitCast(d, hn::ShiftLeft<16>(pairs)), hn::BitCast(d, hn::And(pairs, hn::Set(d32, 0xffff0000u)))};
}
// Rounds both at once, in lanes of 16 bits. A signaling NaN without bits in its upper half becomes infinity; arithmetic
// does not produce such NaNs.
template <class D>
HWY_INLINE void StoreTwo(D d, hn::Vec<D> a, hn::Vec<D> b, BF16* p) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Repartition<uint16_t, D> d16;
  const hn::RebindToSigned<decltype(d16)> i16;
  const auto even = hn::BitCast(d32, a), odd = hn::BitCast(d32, b);
  const auto upper = hn::OddEven(hn::BitCast(d16, odd), hn::BitCast(d16, hn::ShiftRight<16>(even)));
  const auto lower = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(odd)), hn::BitCast(d16, even));
  // lower + 0x7fff + the last bit of upper carries into bit 16; the average, one more and halved, has that carry as
  // bit 15.
  const auto half = hn::OrAnd(hn::Set(d16, 0x7ffe), upper, hn::Set(d16, 1));
  const auto carry = hn::ShiftRight<15>(hn::AverageRound(lower, half));
  const auto magnitude = hn::BitCast(i16, hn::And(upper, hn::Set(d16, 0x7fff)));
  const auto nan = hn::RebindMask(d16, hn::Gt(magnitude, hn::Set(i16, 0x7f80)));
  hn::StoreU(hn::IfThenElse(nan, upper, hn::Add(upper, carry)), d16, &p->bits);
}
#endif

// A function of many instructions. Its results become bf16 in a separate loop: at the end of a long chain, rounding
// would wait in the CPU's schedulers, which then hold too few elements.
constexpr bool kLongFunction = true;

// MapRow for as many elements as fill whole chunks; returns their number.
template <class F, class... In>
HWY_INLINE int64_t MapChunks(BF16* out, int64_t n, const F& f, const In*... in) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  constexpr int64_t kChunk = 512;
  HWY_ALIGN float results[kChunk];
  int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    for (int64_t j = 0; j < kChunk; j += 2 * lanes) {
      const auto keep = [&](auto... v) HWY_ATTR {
        hn::Store(f(d, v.a...), d, results + j);
        hn::Store(f(d, v.b...), d, results + j + lanes);
      };
      keep(LoadTwo(d, in + i + j)...);
    }
    for (int64_t j = 0; j < kChunk; j += 2 * lanes) {
      StoreTwo(d, hn::Load(d, results + j), hn::Load(d, results + j + lanes), out + i + j);
    }
  }
  return i;
}

// out[i] = f(d, in[i]...) in FP32, rounded once. `out` may be one of `in`.
template <bool kLong = false, class T, class F, class... In>
HWY_INLINE void MapRow(T* out, int64_t n, const F& f, const In*... in) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  if constexpr ((std::is_same_v<T, In> && ...)) {  // equal orders of elements
    if constexpr (kLong && std::is_same_v<T, BF16>) i = MapChunks(out, n, f, in...);
    const auto store = [&](auto... v) HWY_ATTR { StoreTwo(d, f(d, v.a...), f(d, v.b...), out + i); };
    for (; i + 2 * lanes <= n; i += 2 * lanes) store(LoadTwo(d, in + i)...);
  }
  for (; i + lanes <= n; i += lanes) StoreF32(d, f(d, LoadF32(d, in + i)...), out + i);
  if (i < n) {
    const size_t rest = size_t(n - i);
    StoreF32N(d, f(d, LoadF32N(d, in + i, rest)...), out + i, rest);
  }
}

template <class T>
struct Rows {
  T* data;
  RowOffsets offsets;
};

template <class T>
Rows<T> RowsOf(const lz_tensor& t) {
  return {Data<T>(t), RowOffsets(t)};
}

// All rows of n elements. 16k elements take about 4 us on one core: less does not pay for waking another thread.
template <bool kLong = false, class T, class F, class... In>
void MapRows(const lz_kernel_args* args, int64_t rows, int64_t n, const F& f, const Rows<T>& out,
             const Rows<const In>&... in) {
  constexpr int64_t kBlock = 2048, kGrain = 16384;
  if (out.offsets.dense(n) && (in.offsets.dense(n) && ...)) {
    const int64_t total = rows * n;
    ParallelFor(args, (total + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kBlock, count = std::min(end * kBlock, total) - first;
      MapRow<kLong>(out.data + first, count, f, (in.data + first)...);
    });
    return;
  }
  ParallelFor(args, rows, kGrain / (n + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) MapRow<kLong>(out.data + out.offsets[r], n, f, (in.data + in.offsets[r])...);
  });
}

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
