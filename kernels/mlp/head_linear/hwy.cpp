// Products of the heads of rows, CPU SIMD: rows are widened once per block of k, weights are read as they are stored.
//   input [..., h, k]  f32|f16|bf16     weight [h, n, k]  dtype of input     output [..., h, n]  f32|f16|bf16
// Any strides; fast if k or n is the weight's dense axis. Workspace: none. Deterministic. Source: own; FP32 sums.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/head_linear/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "kernels/spec.h"
#include "ops/mlp/head_linear.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_head_linear;

constexpr int kRows = 4;             // rows of input that share one read of the weights
constexpr int64_t kBlock = 256;      // values of k and of n in a tile
constexpr int64_t kGrain = 1 << 18;  // products: about 10 us
using Tag = hn::ScalableTag<float>;
using V = hn::Vec<Tag>;

// Whole vectors may be read and written past the last column.
struct Tile {
  static constexpr int64_t kWidth = kBlock + 4 * int64_t(hn::MaxLanes(Tag()));
  HWY_ALIGN float x[kRows][kWidth];
  HWY_ALIGN float sums[kRows][kWidth];
};

template <class T>
struct Weight {
  const T* data;
  int64_t n, k;  // strides
};

// sums[r][j] += x[r] . w[j], vectors along k.
template <int R, class T>
void AlongK(Tile& t, const Weight<T>& w, int64_t n, int64_t k) {
  constexpr int kColumns = R < 3 ? 4 : 2;
  const Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d)), whole = k - k % lanes;
  for (int64_t j = 0; j < n; j += kColumns) {
    const T* columns[kColumns];
    for (int c = 0; c < kColumns; ++c) columns[c] = w.data + std::min(j + c, n - 1) * w.n;
    V sums[R][kColumns];
    for (auto& row : sums) std::fill_n(row, kColumns, hn::Zero(d));
    const auto step = [&](int64_t i, auto load) HWY_ATTR {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        const V weights = load(columns[c] + i);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sums[r][c] = hn::MulAdd(hn::LoadU(d, t.x[r] + i), weights, sums[r][c]);
      }
    };
    for (int64_t i = 0; i < whole; i += lanes) step(i, [&](const T* p) HWY_ATTR { return LoadF32(d, p); });
    if (whole < k) step(whole, [&](const T* p) HWY_ATTR { return LoadF32N(d, p, size_t(k - whole)); });
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < kColumns && j + c < n; ++c) t.sums[r][j + c] += hn::GetLane(hn::SumOfLanes(d, sums[r][c]));
    }
  }
}

// The same, vectors along n.
template <int R, class T>
void AlongN(Tile& t, const Weight<T>& w, int64_t n, int64_t k) {
  constexpr int kVectors = R < 3 ? 4 : 2;
  const Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto column = [&]<int W>(int64_t j, auto load) HWY_ATTR {
    V sums[R][W];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < W; ++v) sums[r][v] = hn::LoadU(d, t.sums[r] + j + v * lanes);
    for (int64_t i = 0; i < k; ++i) {
      V weights[W];
#pragma GCC unroll 4
      for (int v = 0; v < W; ++v) weights[v] = load(w.data + i * w.k + j + v * lanes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const V x = hn::Set(d, t.x[r][i]);
#pragma GCC unroll 4
        for (int v = 0; v < W; ++v) sums[r][v] = hn::MulAdd(x, weights[v], sums[r][v]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < W; ++v) hn::StoreU(sums[r][v], d, t.sums[r] + j + v * lanes);
  };
  const auto all = [&](const T* p) HWY_ATTR { return LoadF32(d, p); };
  int64_t j = 0;
  for (; j + kVectors * lanes <= n; j += kVectors * lanes) column.template operator()<kVectors>(j, all);
  for (; j + lanes <= n; j += lanes) column.template operator()<1>(j, all);
  if (j < n) column.template operator()<1>(j, [&](const T* p) HWY_ATTR { return LoadF32N(d, p, size_t(n - j)); });
}

template <int R, class T>
void Add(Tile& t, const Weight<T>& w, int64_t n, int64_t k) {
  if (w.k == 1) return AlongK<R>(t, w, n, k);
  if (w.n == 1) return AlongN<R>(t, w, n, k);
  for (int r = 0; r < R; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += t.x[r][i] * ToFloat(w.data[j * w.n + i * w.k]);
      t.sums[r][j] += sum;
    }
  }
}

template <class T>
void Store(const float* sums, int64_t n, T* out, int64_t stride) {
  const Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t j = 0;
  if (stride == 1) {
    for (; j + lanes <= n; j += lanes) StoreF32(d, hn::LoadU(d, sums + j), out + j);
  }
  for (; j < n; ++j) FromFloat(sums[j], out + j * stride);
}

// Columns [first, first + n) of one head of `count` rows.
template <class T, class Out>
void Run(const lz_kernel_args* args, Tile& t, int64_t row, int64_t count, int64_t head, int64_t first, int64_t n) {
  const lz_tensor &x = args->tensors[kInput], &w = args->tensors[kWeight], &out = args->tensors[kOutput];
  const RowOffsets from(x), to(out);
  const int64_t heads = w.shape[0], k = w.shape[2], dense = x.strides[x.ndim - 1];
  for (auto& sums : t.sums) std::fill_n(sums, n, 0.0f);
  for (int64_t i = 0; i < k; i += kBlock) {
    const int64_t part = std::min(kBlock, k - i);
    for (int64_t r = 0; r < count; ++r) {
      const T* p = Data<const T>(x) + from[(row + r) * heads + head] + i * dense;
      for (int64_t c = 0; c < part; ++c) t.x[r][c] = ToFloat(p[c * dense]);
      std::fill_n(t.x[r] + part, hn::MaxLanes(Tag()), 0.0f);
    }
    const T* weights = Data<const T>(w) + head * w.strides[0] + first * w.strides[1] + i * w.strides[2];
    const Weight<T> weight = {weights, w.strides[1], w.strides[2]};
    if (count == 1) Add<1>(t, weight, n, part);
    if (count == 2) Add<2>(t, weight, n, part);
    if (count == 3) Add<3>(t, weight, n, part);
    if (count == 4) Add<4>(t, weight, n, part);
  }
  const int64_t stride = out.strides[out.ndim - 1];
  for (int64_t r = 0; r < count; ++r) {
    Store(t.sums[r], n, Data<Out>(out) + to[(row + r) * heads + head] + first * stride, stride);
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &w = args->tensors[kWeight], &out = args->tensors[kOutput];
  const int64_t heads = w.shape[0], n = w.shape[1], k = w.shape[2];
  if (heads == 0 || n == 0) return 0;
  const int64_t rows = NumRows(out) / heads, tiles = (rows + kRows - 1) / kRows, blocks = (n + kBlock - 1) / kBlock;
  const int64_t grain = kGrain / (std::min<int64_t>(rows, kRows) * std::min(n, kBlock) * k + 1) + 1;
  ParallelFor(args, tiles * heads * blocks, grain, [&](int64_t begin, int64_t end) {
    Tile tile;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item % tiles * kRows, first = item / tiles % blocks * kBlock, head = item / tiles / blocks;
      WithFloatType(DTypeOf(w), [&](auto t) {
        WithFloatType(DTypeOf(out), [&](auto o) {
          Run<decltype(t), decltype(o)>(args, tile, row, std::min<int64_t>(kRows, rows - row), head, first,
                                        std::min(kBlock, n - first));
        });
      });
    }
  });
  return 0;
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

constexpr std::array kFamily = {
    CpuSpec("hwy.mlp.head_linear", &LaunchBest, {.accepts = kAcceptsAll, .strides = Strides::kAny})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
