// One token per row from logits with top-k, top-p and min-p: the body of the sample_* kernels. A row: scan (maximum,
// NaN) -> top-k candidates, compressed in vocabulary order -> weights exp((x - max) / T) -> top-p threshold by
// SelectThreshold -> weights outside the kept set become 0 -> draw over block sums. Include only from files that
// Highway compiles per target.
#if defined(LZ_KERNELS_SAMPLING_COMMON_SAMPLE_ROWS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_SAMPLING_COMMON_SAMPLE_ROWS_H_
#undef LZ_KERNELS_SAMPLING_COMMON_SAMPLE_ROWS_H_
#else
#define LZ_KERNELS_SAMPLING_COMMON_SAMPLE_ROWS_H_
#endif

#include <atomic>
#include <optional>

#include "core/dtype.h"
#include "kernels/sampling/common/select.h"
#include "kernels/sampling/common/workspace.h"
#include "ops/common/sampling_args.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::sampler {

using sampling::Filters;

// A row whose maximum is +inf: its infinite logits share the probability equally.
inline int64_t SampleInfinite(const float* x, int64_t n, const Filters& f, double u) {
  int64_t infinite = 0;
  for (int64_t i = 0; i < n; ++i) infinite += x[i] == kInf;
  int64_t kept = std::min(infinite, f.k);
  if (f.p < 1) kept = std::max<int64_t>(1, int64_t(std::ceil(f.p * double(kept))));
  int64_t rank = std::min(int64_t(u * double(kept)), kept - 1);
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == kInf && rank-- == 0) return i;
  }
  return -1;  // unreachable
}

// Compresses the elements that `t` keeps, in vocabulary order, with their indices; returns their number.
inline int64_t Gather(Tag d, const float* HWY_RESTRICT x, int64_t n, const Threshold& t, float* HWY_RESTRICT out_x,
                      int32_t* HWY_RESTRICT out_index) {
  const hn::RebindToSigned<Tag> di;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const Vec value = hn::Set(d, t.value);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += lanes) {
    const Vec v = LoadUpTo(d, x, i, n, std::numeric_limits<float>::quiet_NaN());
    const auto keep = hn::Ge(v, value);
    if (HWY_LIKELY(hn::AllFalse(d, keep))) continue;
    hn::CompressStore(hn::Iota(di, int32_t(i)), hn::RebindMask(di, keep), di, out_index + count);
    count += int64_t(hn::CompressStore(v, keep, d, out_x + count));
  }
  int64_t kept = 0, ties = 0;
  for (int64_t j = 0; j < count; ++j) {
    if (out_x[j] == t.value && ties++ >= t.ties) continue;
    out_x[kept] = out_x[j];
    out_index[kept++] = out_index[j];
  }
  return kept;
}

// Sets the weights of elements that `t` does not keep to 0, and the blocks' sums; returns the total.
inline double ZeroBelow(Tag d, const float* HWY_RESTRICT x, int64_t n, const Threshold& t, float* HWY_RESTRICT w,
                        double* HWY_RESTRICT blocks) {
  const Vec value = hn::Set(d, t.value);
  int64_t ties = 0;  // equal elements seen
  return FillWeights(d, n, w, blocks, [&](int64_t i) HWY_ATTR {
    const Vec v = LoadUpTo(d, x, i, n, -kInf);
    const Vec kept = hn::IfThenElseZero(hn::Ge(v, value), hn::LoadU(d, w + i));
    const auto equal = hn::Eq(v, value);
    const auto here = int64_t(hn::CountTrue(d, equal));
    ties += here;
    if (HWY_LIKELY(here == 0 || ties <= t.ties)) return kept;
    alignas(64) float lanes[hn::MaxLanes(d)];
    hn::Store(kept, d, lanes);
    int64_t seen = ties - here;
    for (int64_t j = 0; j < int64_t(hn::Lanes(d)) && i + j < n; ++j) {
      if (x[i + j] == t.value && seen++ >= t.ties) lanes[j] = 0;
    }
    return Vec(hn::Load(d, lanes));
  });
}

template <class T>
int64_t SampleRow(const T* row, int64_t n, const Filters& f, double u, const RowWorkspace& ws) {
  const Tag d;
  const float* x = ws.x;
  float* copy = ws.x;
  if constexpr (std::is_same_v<T, float>) {
    x = row;
    copy = nullptr;
  }
  const ScanResult scan = ScanRow(d, row, n, copy);
  if (scan.nan || scan.max == -kInf) return -1;
  if (scan.max == kInf) return SampleInfinite(x, n, f, u);
  if (f.k == 1 || f.p == 0) return FindFirst(d, x, n, scan.max);

  const SelectBuffers buffers = {ws.select_x, ws.select_w};
  const int32_t* index = nullptr;
  if (f.k < n) {
    const Threshold t = SelectThreshold(d, x, nullptr, n, double(n), double(f.k), buffers);
    n = Gather(d, x, n, t, ws.candidates, ws.index);
    x = ws.candidates;
    index = ws.index;
  }
  double total = ExpWeights(d, x, n, scan.max, f.temperature, ws.w, ws.blocks);
  if (f.p < 1) {
    const Threshold t = SelectThreshold(d, x, ws.w, n, total, f.p * total, buffers);
    total = ZeroBelow(d, x, n, t, ws.w, ws.blocks);
  }
  if (f.min_p > 0) {
    const Vec least = hn::Set(d, float(f.min_p));
    total = FillWeights(d, n, ws.w, ws.blocks, [&](int64_t i) HWY_ATTR {
      const Vec w = hn::LoadU(d, ws.w + i);
      return hn::IfThenElseZero(hn::Ge(w, least), w);
    });
  }
  const int64_t at = Draw(ws.w, n, ws.blocks, total, u);
  return index ? index[at] : at;
}

template <class T>
int32_t SampleRows(const lz_kernel_args* args, const sampling::SampleArguments& call) {
  const lz_tensor &logits = call.logits, &token = call.token;
  const int64_t n = logits.shape[logits.ndim - 1];
  const T* x = Data<const T>(logits);
  int64_t* out = Data<int64_t>(token);
  if (!call.draws.Valid()) return LZ_LAUNCH_INVALID_DATA;
  std::atomic<bool> valid = true, answered = true;
  const int32_t code = ParallelRows(args, NumRows(logits), n, [&](int64_t row, const RowWorkspace& ws) {
    const std::optional<Filters> filters = call.FiltersOf(row);
    if (!filters) return valid.store(false, std::memory_order_relaxed);
    const T* begin = x + StridedOffset(logits, row, logits.ndim - 1);
    const int64_t id = SampleRow(begin, n, *filters, call.draws.OfRow(row), ws);
    out[StridedOffset(token, row, token.ndim)] = id;
    if (id < 0) answered.store(false, std::memory_order_relaxed);
  });
  if (code != 0) return code;
  return valid ? sampling::Outcome(*args, answered) : LZ_LAUNCH_INVALID_DATA;
}

// Launches the operation's kernel: its logits are f32, f16 or bf16 with a dense last axis.
inline int32_t LaunchSample(const Contract& contract, const lz_kernel_args* args) {
  const sampling::SampleArguments call(contract, *args);
  return WithFloatType(DTypeOf(call.logits), [&](auto t) { return SampleRows<decltype(t)>(args, call); });
}

}  // namespace lz::HWY_NAMESPACE::sampler
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
