// Softmax with a temperature on CUDA: one pass for the maximum and the sum, one for the results. With clusters the
// second reads shared memory: each of a row's 2 to 8 blocks keeps its share there. Otherwise a row is a block's.
//   logits [..., vocab]  f32|f16|bf16, last dim dense     probs [..., vocab]  f32, last dim dense; may be f32 logits
//   row_temperature [...]  any float, any strides
// Workspace: none. Deterministic. Safe in graph captures. Source: own; definition in ops/sampling/softmax.h. FP32. A
// row of a temperature that a call on the CPU would refuse is NaN.
#include "kernels/sampling/common/logits_cuda.h"
#include "kernels/sampling/common/team_cuda.h"
#include "kernels/sampling/common/weights_cuda.h"
#include "kernels/spec.h"
#include "ops/sampling/softmax.h"

namespace lz {
namespace {
using namespace lz::ops::sampling_softmax;
using namespace lz::sampler;

constexpr int64_t kShort = 2048;  // a row for few threads
constexpr int kShortThreads = 128;

struct SoftmaxProblem {
  const void* logits;
  float* probs;
  DeviceRows logit_rows, prob_rows;
  int64_t rows, vocab, share;
  RowNumber temperature;
};

// The sum of the weights of some elements, relative to their maximum; NaN where a row has no probabilities.
struct Sum {
  float highest, sum;
};

class RunningSum {
 public:
  __device__ explicit RunningSum(const Weights& weights) : weights_(weights) {}
  template <int kN>
  __device__ void Add(const float (&v)[kN]) {
    float most = weights_.highest;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      bad_ |= isnan(v[j]) || v[j] == kInfinity;
      most = fmaxf(most, v[j]);
    }
    if (most > weights_.highest) {
      const float before = weights_.highest;
      weights_.highest = most;
      sum_ *= weights_(before);
    }
    if (!(most > -kInfinity)) return;
#pragma unroll
    for (int j = 0; j < kN; ++j) sum_ += weights_(v[j]);
  }
  __device__ Sum Total() const { return {weights_.highest, bad_ ? nanf("") : sum_}; }

 private:
  Weights weights_;
  float sum_ = 0;
  bool bad_ = false;
};

template <bool kCluster>
__device__ Sum SumOfRow(Team<kCluster>& team, const Sum& of_thread, Weights weights) {
  const auto scaled = [&weights](const Sum& s) { return s.sum * weights(s.highest); };
  weights.highest = BlockMax(of_thread.highest);
  const Sum sum = {weights.highest, BlockSum(scaled(of_thread))};
  if constexpr (!kCluster) return sum;
  const Sum* blocks = team.Gather(sum);
  for (int b = 0; b < team.blocks; ++b) weights.highest = fmaxf(weights.highest, blocks[b].highest);
  float total = 0;
  for (int b = 0; b < team.blocks; ++b) total += scaled(blocks[b]);
  return {weights.highest, total};
}

template <class T, int kN>
struct Floats {
  float v[kN];
  __device__ explicit Floats(const Vector<T, kN>& from) {
#pragma unroll
    for (int j = 0; j < kN; ++j) v[j] = ToFloat(from.v[j]);
  }
};

// The block's n elements from x on.
template <bool kCluster, class T>
__device__ void SoftmaxShare(Team<kCluster>& team, char* share, const T* x, float* out, int n, double temperature) {
  constexpr int kN = kLanes<T>, kBatch = kCluster ? 1 : 4;
  using V = Vector<T, kN>;
  const int lane = int(threadIdx.x), lanes = int(blockDim.x);
  Weights weights(-kInfinity, temperature);
  RunningSum running(weights);
  T* const copy = kCluster ? CopyOf(x, share) : nullptr;
  EachVector<4>(
      x, 0, n, lane, lanes,
      [&](int i) {
        if (kCluster) copy[i] = x[i];
        running.Add({ToFloat(x[i])});
      },
      [&](int i, const V& v) {
        if (kCluster) *reinterpret_cast<V*>(copy + i) = v;
        running.Add(Floats<T, kN>(v).v);
      });
  const Sum sum = SumOfRow(team, running.Total(), weights);
  const bool good = temperature > 0 && temperature < HUGE_VAL && sum.highest > -kInfinity;
  const float scale = good ? 1.0f / sum.sum : nanf("");
  weights.highest = sum.highest;
  EachVector<kBatch>(
      kCluster ? copy : x, 0, n, lane, lanes,
      [&](int i) { out[i] = weights(ToFloat(kCluster ? copy[i] : x[i])) * scale; },
      [&](int i, const V& v) {
        Floats<T, kN> f(v);
#pragma unroll
        for (int j = 0; j < kN; ++j) f.v[j] = weights(f.v[j]) * scale;
        if (reinterpret_cast<uintptr_t>(out + i) % kVectorBytes == 0) {
#pragma unroll
          for (int j = 0; j < kN; j += 4)
            *reinterpret_cast<float4*>(out + i + j) = {f.v[j], f.v[j + 1], f.v[j + 2], f.v[j + 3]};
        } else {
#pragma unroll
          for (int j = 0; j < kN; ++j) out[i + j] = f.v[j];
        }
      });
}

template <class T, bool kCluster>
__global__ void __launch_bounds__(kRowThreads, kCluster ? 2 : 1) Softmax(const __grid_constant__ SoftmaxProblem p) {
  extern __shared__ __align__(16) char share[];
  Team<kCluster> team;
  if (kCluster) team.Sync();  // all blocks run
  for (int64_t row = blockIdx.x / team.blocks; row < p.rows; row += gridDim.x / team.blocks) {
    const int64_t first = team.block * p.share, left = p.vocab - first;
    SoftmaxShare(team, share, static_cast<const T*>(p.logits) + p.logit_rows[row] + first,
                 p.probs + p.prob_rows[row] + first,
                 int(left < 0         ? 0
                     : left < p.share ? left
                                      : p.share),
                 p.temperature(row));
    __syncthreads();  // the share has been read
  }
  if (kCluster) team.Sync();  // no block reads another
}

template <class T>
int32_t LaunchRows(SoftmaxProblem p, void* stream) {
  constexpr int64_t kMaxRows = 1 << 16, kStaticBytes = 4096;
  const unsigned rows = unsigned(p.rows < kMaxRows ? p.rows : kMaxRows);
  const RowLaunch launch = DivideRows(p.rows, p.vocab, sizeof(T), kStaticBytes);
  p.share = launch.share;
  if (launch.blocks > 1) {
    return CudaCode(LaunchClusters<&Softmax<T, true>>(rows, launch.blocks, kRowThreads, launch.bytes, stream, p));
  }
  const int threads = p.vocab <= kShort ? kShortThreads : kRowThreads;
  Softmax<T, false><<<rows, threads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &logits = args->tensors[kLogits], &probs = args->tensors[kProbs];
  const lz_tensor& rows = args->tensors[kRowTemperature];
  const SoftmaxProblem p = {
      .logits = Data<void>(logits),
      .probs = Data<float>(probs),
      .logit_rows = DeviceRows(logits),
      .prob_rows = DeviceRows(probs),
      .rows = NumRows(logits),
      .vocab = logits.shape[logits.ndim - 1],
      .temperature = Given(rows) ? RowNumber(rows) : RowNumber(args->scalars[kTemperature].value.f)};
  if (p.rows == 0 || p.vocab == 0) return 0;
  return WithCudaFloat(DTypeOf(logits), [&](auto t) { return LaunchRows<decltype(t)>(p, args->stream); });
}

constexpr auto kConstraints =
    std::to_array<Constraint>({kOnCompiledSm, kOnDriver, {"vocab", Rel::kLe, int64_t{1} << 30}});
// Rows that a cluster divides; elsewhere torch's kernel is as fast or faster.
constexpr auto kLongRows = std::to_array<Constraint>({
    {"device.sm", Rel::kGe, kFirstSmWithClusters},
    {"vocab", Rel::kGe, 1 << 14},
});
constexpr auto kPreferences = std::to_array<Preference>({{.when = kLongRows, .priority = 80}});
constexpr std::array kFamily = {CudaSpec(
    "cuda.sampling.softmax", &Launch,
    {.constraints = kConstraints, .accepts = kAcceptsAll, .priority = kNotYetMeasured, .preferences = kPreferences})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
