// The kernel of the sample_* operations on CUDA. With clusters a row is read from global memory once: each of 2 to 8
// blocks keeps its share in shared memory. Otherwise a row is a block's, which reads it three times (min-p) to about
// nine (top-k and top-p), from the second time on out of L2.
//   logits [..., vocab]  f32|f16|bf16, last dim dense     token [...]  i64     row values, uniform: any strides
// Workspace: none. Deterministic: integer sums, so both forms give the same tokens. Safe in graph captures. Source:
// own. Weights in FP32, rounded to multiples of 2^-40. The token of a row without a distribution, or with numbers that
// a call on the CPU refuses, is -1.
#include "kernels/sampling/common/logits_cuda.h"
#include "kernels/sampling/common/sample_cuda.h"
#include "kernels/sampling/common/select_cuda.h"
#include "kernels/sampling/common/weights_cuda.h"

namespace lz::sampler {
namespace {

struct SampleProblem {
  const void* logits;
  int64_t* token;
  DeviceRows logit_rows, token_rows;
  int64_t rows, vocab, share, seed, offset;
  RowNumber k, p, min_p, temperature, uniform;
};

// Of a row's elements above -inf. Floats are keys.
struct Extremes {
  uint32_t lowest, highest, count, nan;
  uint32_t of_threads, of_warps;  // what the largest element of each thread, or of each warp, is not below

  __device__ float Lowest() const { return OfKey(lowest); }
  __device__ float Highest() const { return OfKey(highest); }
  // At least k elements are not below the result, for k up to `count`.
  __device__ float Floor(double k, int warps) const {
    const uint32_t floor = k <= warps ? of_warps : k <= warps * kWarp ? of_threads : lowest;
    return OfKey(floor > lowest ? floor : lowest);
  }
};
__device__ inline Extremes FoldExtremes(const Extremes& a, const Extremes& b) {
  return {min(a.lowest, b.lowest), max(a.highest, b.highest),       a.count + b.count,
          a.nan | b.nan,           min(a.of_threads, b.of_threads), min(a.of_warps, b.of_warps)};
}

// each(body): calls body(value) for this thread's elements.
template <bool kCluster, class Each>
__device__ Extremes FindExtremes(Team<kCluster>& team, Each each) {
  float lowest = kInfinity, highest = -kInfinity;
  uint32_t count = 0;
  bool nan = false;
  each([&](float v) {
    nan |= isnan(v);
    if (!(v > -kInfinity)) return;
    lowest = v < lowest ? v : lowest;
    highest = v > highest ? v : highest;
    ++count;
  });
  constexpr uint32_t kAll = 0xffffffffu;
  const uint32_t most = __reduce_max_sync(kAll, KeyOf(highest));
  const Extremes mine = {__reduce_min_sync(kAll, KeyOf(lowest)),  most,
                         __reduce_add_sync(kAll, count),          __any_sync(kAll, nan) ? 1u : 0u,
                         __reduce_min_sync(kAll, KeyOf(highest)), most};
  return team.FoldWarps(mine, FoldExtremes);
}

// What is kept of a row, as masses.
template <class T, bool kShared>
struct Kept {
  Logits<T, kShared> x;
  Weights weights;
  Threshold t;
  double min_p;

  __device__ Mass MassOf(float v) const {
    const float w = weights(v);
    return double(w) >= min_p ? MassOfWeight(w) : 0;
  }
  // The mass of a value, 0 for one of the ties.
  __device__ Mass Take(float v, bool* tie) const {
    if (!(v >= t.value)) return 0;
    *tie = v == t.value && t.ties != kAllTies;
    return *tie ? 0 : MassOf(v);
  }
  __device__ Mass operator()(int i, bool* tie) const { return Take(x(i), tie); }
  template <class Body>
  __device__ void Each(int first, int last, int lane, int lanes, Body body) const {
    x.Each(first, last, lane, lanes, [&](float v) {
      bool tie = false;
      const Mass mass = Take(v, &tie);
      body(mass, tie);
    });
  }
  __device__ Ties TiesOf() const { return t.ties == kAllTies ? Ties{} : Ties{t.ties, MassOf(t.value)}; }
};

struct Filters {
  double k, p, min_p, temperature;
  __device__ bool Valid() const {
    return k >= 1 && p >= 0 && p <= 1 && min_p >= 0 && min_p <= 1 && temperature > 0 && temperature < HUGE_VAL;
  }
};

// n: of the block's elements.
template <bool kCluster, class T>
__device__ void Narrow(Team<kCluster>& team, Bins& bins, Kept<T, kCluster>& kept, const Filters& f, const Extremes& e,
                       int n) {
  const float highest = e.Highest();
  if (f.k == 1 || f.p == 0) {
    kept.t = {highest, 1};
    return;
  }
  const auto mass = [&kept](float v) { return MassOfWeight(kept.weights(v)); };
  const bool fewer = f.k < double(e.count);
  if (fewer) {
    const float floor = e.Floor(f.k, team.blocks * kRowWarps);
    kept.t = SelectThreshold<false>(team, bins, kept.x, n, floor, highest, {Mass(f.k), 0}, mass);
  }
  if (f.p == 1) return;
  const Goal goal = {fewer ? Goal::Of(f.p, TotalMass(team, kept, n, kept.TiesOf())) : 0, f.p};
  const float lightest = float(double(highest) - 30 * f.temperature);  // what is below weighs 0: exp(-28.5) < 2^-41
  const float lowest = kept.t.value > lightest ? kept.t.value : lightest;
  const Threshold t = SelectThreshold<true>(team, bins, kept.x, n, lowest, highest, goal, mass);
  if (t.value > kept.t.value || t.ties < kept.t.ties) kept.t = t;
}

// The token's index in the row, kNoToken, or kOfAnotherBlock. `share`: the block's memory for its share of the row.
template <bool kCluster, class T>
__device__ int64_t SampleRow(Team<kCluster>& team, Bins& bins, char* share, const SampleProblem& p, int64_t row) {
  const int first = min(team.block * int(p.share), int(p.vocab)), n = min(int(p.share), int(p.vocab) - first);
  Logits<T, kCluster> x = {static_cast<const T*>(p.logits) + p.logit_rows[row] + first, false};
  const auto each = [&](auto body) { x.Each(0, n, int(threadIdx.x), kRowThreads, body); };
  Extremes e;
  if constexpr (kCluster) {
    T* const copy = CopyOf(x.x, share);
    e = FindExtremes(team, [&](auto body) { x.EachCopied(n, copy, body); });
    x.x = copy;
  } else {
    e = FindExtremes(team, each);
  }
  const Filters f = {p.k(row), p.p(row), p.min_p(row), p.temperature(row)};
  if (e.nan || e.count == 0 || !f.Valid()) return kNoToken;
  if (e.Highest() == kInfinity) {
    x.infinite = true;
    e = FindExtremes(team, each);
  }
  Kept<T, kCluster> kept = {x, Weights(e.Highest(), f.temperature), {e.Lowest(), kAllTies}, f.min_p};
  Narrow(team, bins, kept, f, e, n);
  const double u = p.uniform.data ? Uniform(p.uniform(row)) : PhiloxDraw(p.seed, p.offset, row, 0);
  const int token = Draw(team, kept, n, kept.TiesOf(), u);
  return token < 0 ? token : first + token;
}

template <class T, bool kCluster>
__global__ void __launch_bounds__(kRowThreads, kCluster ? 2 : 1) Sample(const __grid_constant__ SampleProblem p) {
  __shared__ Bins bins;
  extern __shared__ __align__(16) char share[];
  Team<kCluster> team;
  bins.Clear();
  team.Sync();  // all blocks run
  for (int64_t row = blockIdx.x / team.blocks; row < p.rows; row += gridDim.x / team.blocks) {
    const int64_t token = SampleRow<kCluster, T>(team, bins, share, p, row);
    if (threadIdx.x == 0 && (token >= 0 || (token == kNoToken && team.block == 0))) p.token[p.token_rows[row]] = token;
    __syncthreads();  // the share has been read
  }
  if (kCluster) team.Sync();  // no block reads another
}

template <class T>
int32_t LaunchRows(SampleProblem p, void* stream) {
  constexpr int64_t kMaxRows = 1 << 16, kStaticBytes = sizeof(Bins) + 4096;
  const unsigned rows = unsigned(p.rows < kMaxRows ? p.rows : kMaxRows);
  const RowLaunch launch = DivideRows(p.rows, p.vocab, sizeof(T), kStaticBytes);
  p.share = launch.share;
  if (launch.blocks > 1) {
    return CudaCode(LaunchClusters<&Sample<T, true>>(rows, launch.blocks, kRowThreads, launch.bytes, stream, p));
  }
  Sample<T, false><<<rows, kRowThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}

// `scalar` and `tensor` are indices of arguments, -1 where the operation has none.
RowNumber NumberOf(const lz_kernel_args& args, int scalar, int tensor, bool integer, double otherwise) {
  if (tensor >= 0 && Given(args.tensors[tensor])) return RowNumber(args.tensors[tensor]);
  if (scalar < 0 || !args.scalars[scalar].given) return RowNumber(otherwise);
  return RowNumber(integer ? double(args.scalars[scalar].value.i) : args.scalars[scalar].value.f);
}

}  // namespace

int32_t LaunchSample(const SampleIndices& a, const lz_kernel_args* args) {
  const lz_tensor &logits = args->tensors[0], &token = args->tensors[a.token], &uniform = args->tensors[a.uniform];
  const SampleProblem p = {.logits = Data<void>(logits),
                           .token = Data<int64_t>(token),
                           .logit_rows = DeviceRows(logits),
                           .token_rows = ElementsOf(token),
                           .rows = NumRows(logits),
                           .vocab = logits.shape[logits.ndim - 1],
                           .seed = args->scalars[a.seed].value.i,
                           .offset = args->scalars[a.offset].value.i,
                           .k = NumberOf(*args, a.k, a.row_k, true, HUGE_VAL),
                           .p = NumberOf(*args, a.p, a.row_p, false, 1),
                           .min_p = NumberOf(*args, a.min_p, a.row_min_p, false, 0),
                           .temperature = NumberOf(*args, a.temperature, a.row_temperature, false, 1),
                           .uniform = Given(uniform) ? RowNumber(uniform) : RowNumber()};
  if (p.rows == 0) return 0;
  return WithCudaFloat(DTypeOf(logits), [&](auto t) { return LaunchRows<decltype(t)>(p, args->stream); });
}

}  // namespace lz::sampler
