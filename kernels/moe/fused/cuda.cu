// Mixture of experts on CUDA by four launches: choices are sorted by expert, their rows are multiplied with gate and up
// and become hidden rows, these are multiplied with the down projection, and the results of a token are added in order.
//   input [..., d], gate_weight [experts, g, d], down_weight [experts, m, n], up_weight [experts, n, d], biases
//   [experts, *]  f32|f16|bf16     expert_ids [..., k] i32|i64     expert_weights [..., k] any float
//   output [..., m] dtype of input
// By products of matrices in 16 bits (expert_tiles_cuda.h), where rows begin at multiples of 16 bytes: hidden rows are
// bf16, or f16 with a power of two for each 64 columns, so that none overflows and those from 2^-28 of the largest on
// have 11 bits. In FP32 any strides (expert_sums_cuda.h). Workspace: the order of the choices, hidden rows, a row of m
// float32 for each choice. Deterministic: the order of an expert's rows is not, but no row depends on its place. Safe
// in graph captures.
#include "kernels/joined.h"
#include "kernels/moe/expert_sums_cuda.h"
#include "kernels/moe/expert_tiles_cuda.h"
#include "kernels/spec.h"
#include "ops/moe/fused.h"

namespace lz {
namespace {
using namespace lz::ops::moe_fused;

constexpr int64_t kMostExperts = 1024, kMostChoices = int64_t{1} << 24;  // sorted by one block
constexpr int kSortThreads = 1024, kAddThreads = 256;

// What the launches share; its parts are in the workspace.
struct Call {
  int64_t tokens, choices;  // choices of all tokens
  int32_t per_token, experts, d, n, m;
  int32_t *offsets, *order;
  void* hidden;
  float *scales, *results;
  uint64_t bytes;
};
Call CallOf(const lz_kernel_args* args, int64_t hidden_size, bool scaled) {
  const lz_tensor *t = args->tensors, &ids = t[kExpertIds], &down = t[kDownWeight];
  Call c = {.tokens = NumRows(ids)};
  c.per_token = int32_t(ids.shape[ids.ndim - 1]), c.choices = c.tokens * c.per_token;
  c.experts = int32_t(down.shape[0]), c.m = int32_t(down.shape[1]), c.n = int32_t(down.shape[2]);
  c.d = int32_t(t[kInput].shape[t[kInput].ndim - 1]);
  auto* const begin = static_cast<char*>(args->workspace);
  const auto take = [&]<class T>(T** to, int64_t count, int64_t size) {
    *to = reinterpret_cast<T*>(begin + c.bytes);
    c.bytes += uint64_t(count * size + 255) / 256 * 256;
  };
  take(&c.offsets, c.experts + 1, sizeof(int32_t));
  take(&c.order, c.choices, sizeof(int32_t));
  auto* hidden = static_cast<char*>(nullptr);
  take(&hidden, c.choices * c.n, hidden_size);
  c.hidden = hidden;
  take(&c.scales, scaled ? c.choices * ((c.n + experts::kBlockColumns - 1) / experts::kBlockColumns) : 0,
       sizeof(float));
  take(&c.results, c.choices * c.m, sizeof(float));
  return c;
}

struct Ids {
  const void* data;
  bool wide;
  DeviceRows at;
  int32_t experts;
  __device__ int32_t operator()(int64_t choice) const {  // -1: none of these experts
    const int64_t id = LoadIndex(data, at[choice], wide);
    return id >= 0 && id < experts ? int32_t(id) : -1;
  }
};

// One block. order: numbers of the choices, those of expert e from offsets[e] on; choices of none are left out.
__global__ void __launch_bounds__(kSortThreads) Sort(const Ids ids, int64_t choices, int32_t* offsets, int32_t* order) {
  __shared__ int32_t counts[kMostExperts];
  for (int e = int(threadIdx.x); e < ids.experts; e += kSortThreads) counts[e] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < choices; i += kSortThreads) {
    const int32_t id = ids(i);
    if (id >= 0) atomicAdd(&counts[id], 1);
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const int lane = int(threadIdx.x);
    int32_t before = 0;
    for (int from = 0; from < ids.experts; from += kWarp) {
      const int e = from + lane;
      const int32_t count = e < ids.experts ? counts[e] : 0, to = before + int32_t(experts::SumUpToLane(count));
      if (e < ids.experts) offsets[e] = counts[e] = to - count;
      before = __shfl_sync(0xffffffffu, to, kWarp - 1);
    }
    if (lane == 0) offsets[ids.experts] = before;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < choices; i += kSortThreads) {
    const int32_t id = ids(i);
    if (id >= 0) order[atomicAdd(&counts[id], 1)] = int32_t(i);
  }
}

// A thread adds a column of a token's results.
template <class T>
__global__ void __launch_bounds__(kAddThreads)
    Add(const Ids ids, const float* results, T* out, int32_t per_token, int64_t m) {
  const int64_t token = blockIdx.x, column = int64_t(blockIdx.y) * kAddThreads + threadIdx.x;
  if (column >= m) return;
  float sum = 0;
  for (int64_t i = token * per_token; i < (token + 1) * per_token; ++i) {
    if (ids(i) >= 0) sum += results[i * m + column];
  }
  out[token * m + column] = FromFloat<T>(sum);
}

experts::ChoiceWeights WeightsOf(const lz_tensor& weights, bool used) {
  if (!used) return {};
  return {.data = Data<void>(weights), .type = DTypeOf(weights), .at = ElementsOf(weights)};
}

// Gate and up, or the only projection.
experts::Product FirstProduct(const Call& c, const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &input = t[kInput], &gate = t[kGateWeight];
  experts::Product p = {.x = Data<void>(input), .x_rows = DeviceRows(input), .x_column = input.strides[input.ndim - 1]};
  p.order = c.order, p.per_token = c.per_token, p.offsets = c.offsets, p.rows = c.choices;
  p.experts = c.experts, p.n = c.n, p.k = c.d;
  p.side[0] = p.side[1] = experts::SideOf(gate, t[kGateBias]);
  if (Given(t[kUpWeight])) {
    p.side[1] = experts::SideOf(t[kUpWeight], t[kUpBias]);
  } else if (gate.shape[1] != c.n) {  // packed in one tensor
    const int64_t size = ByteSize(DTypeOf(gate));
    const bool interleaved = args->scalars[kInterleaved].value.i != 0;
    experts::Side& up = p.side[1];
    up.weight = static_cast<const char*>(up.weight) + (interleaved ? 1 : c.n) * up.row * size;
    if (up.bias) up.bias = static_cast<const char*>(up.bias) + (interleaved ? 1 : c.n) * up.bias_row * size;
    for (experts::Side& s : p.side) s.row *= interleaved ? 2 : 1, s.bias_row *= interleaved ? 2 : 1;
  }
  return p;
}
template <class T, class H>
experts::ToHidden<T, H> HiddenOf(const Call& c, const lz_kernel_args* args) {
  const lz_scalar* s = args->scalars;
  const lz_tensor* t = args->tensors;
  return {.hidden = static_cast<H*>(c.hidden),
          .scales = c.scales,
          .pairs = c.n % 2 == 0,
          .gated = Given(t[kUpWeight]) || t[kGateWeight].shape[1] != c.n,
          .weights = WeightsOf(t[kExpertWeights], s[kWeighted].value.i == kOfInput),
          .activation = {int32_t(s[kActivation].value.i), float(s[kAlpha].value.f)},
          .limit = s[kLimit].given ? float(s[kLimit].value.f) : HUGE_VALF,
          .up_offset = float(s[kUpOffset].value.f)};
}
experts::Product SecondProduct(const Call& c, const lz_kernel_args* args) {
  experts::Product p = {.x = c.hidden, .x_scales = c.scales};
  if (c.choices != 1) p.x_rows.n = 1, p.x_rows.size[0] = c.choices, p.x_rows.stride[0] = c.n;
  p.offsets = c.offsets, p.rows = c.choices;
  p.experts = c.experts, p.n = c.m, p.k = c.n;
  p.side[0] = experts::SideOf(args->tensors[kDownWeight], args->tensors[kDownBias]);
  return p;
}
template <class T>
experts::ToChoices<T> ResultsOf(const Call& c, const lz_kernel_args* args) {
  const bool weighs = args->scalars[kWeighted].value.i == kOfOutput;
  return {.out = c.results,
          .pairs = c.m % 2 == 0,
          .order = c.order,
          .weights = WeightsOf(args->tensors[kExpertWeights], weighs)};
}

// products(type of both, hidden product, its end, second product, its end)
template <class T, class H, class Products>
int32_t Run(const lz_kernel_args* args, Products&& products) {
  const Call c = CallOf(args, sizeof(H), std::is_same_v<H, __half>);
  const lz_tensor &t = args->tensors[kExpertIds], &out = args->tensors[kOutput];
  if (c.tokens == 0 || c.m == 0) return LZ_LAUNCH_DONE;
  const Ids ids = {Data<void>(t), DTypeOf(t) == DType::kI64, ElementsOf(t), c.experts};
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  if (c.choices > 0 && c.experts > 0) {
    Sort<<<1, kSortThreads, 0, stream>>>(ids, c.choices, c.offsets, c.order);
    if (const int32_t code = Launched(); code != LZ_LAUNCH_DONE) return code;
    const auto end = HiddenOf<T, H>(c, args);
    const int32_t code = products(FirstProduct(c, args), end, SecondProduct(c, args), ResultsOf<T>(c, args), end.gated);
    if (code != LZ_LAUNCH_DONE) return code;
  }
  const int64_t across = (int64_t(c.m) + kAddThreads - 1) / kAddThreads;
  Add<T><<<dim3(unsigned(c.tokens), unsigned(across)), kAddThreads, 0, stream>>>(ids, c.results, Data<T>(out),
                                                                                 c.per_token, c.m);
  return Launched();
}

template <class T>
int32_t RunSums(const lz_kernel_args* args) {
  return Run<T, float>(
      args, [&](const auto& first, const auto& hidden, const auto& second, const auto& results, bool gated) {
        const int32_t code = gated ? experts::LaunchSums<T, T, 2>(first, hidden, args->stream)
                                   : experts::LaunchSums<T, T, 1>(first, hidden, args->stream);
        return code != LZ_LAUNCH_DONE ? code : experts::LaunchSums<float, T, 1>(second, results, args->stream);
      });
}
template <class T>
int32_t RunTiles(const lz_kernel_args* args) {
  constexpr bool kScaled = std::is_same_v<T, __half>;
  return Run<T, T>(
      args, [&](const auto& first, const auto& hidden, const auto& second, const auto& results, bool gated) {
        const int32_t code = gated ? experts::LaunchTiles<T, 2, false>(first, hidden, args->stream)
                                   : experts::LaunchTiles<T, 1, false>(first, hidden, args->stream);
        return code != LZ_LAUNCH_DONE ? code : experts::LaunchTiles<T, 1, kScaled>(second, results, args->stream);
      });
}
int32_t LaunchSums(const lz_kernel_args* args) {
  return WithCudaFloat(DTypeOf(args->tensors[kInput]), [&]<class T>(T) { return RunSums<T>(args); });
}
int32_t LaunchTiles(const lz_kernel_args* args) {
  return DTypeOf(args->tensors[kInput]) == DType::kF16 ? RunTiles<__half>(args) : RunTiles<__nv_bfloat16>(args);
}
uint64_t SumsWorkspace(const lz_kernel_args* args) { return CallOf(args, sizeof(float), false).bytes; }
uint64_t TilesWorkspace(const lz_kernel_args* args) {
  return CallOf(args, sizeof(uint16_t), DTypeOf(args->tensors[kInput]) == DType::kF16).bytes;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"experts", Rel::kLe, kMostExperts},
    {"rows * k", Rel::kLe, kMostChoices},
    {"rows", Rel::kLe, kMostChoices},
    {"n", Rel::kLe, int64_t{1} << 21},
    {"m", Rel::kLe, int64_t{1} << 21},
    {"d", Rel::kLe, int64_t{1} << 30},
});
constexpr auto kTileConstraints = Joined(kConstraints, {
                                                           {"d", Rel::kMultipleOf, 8},
                                                           {"n", Rel::kMultipleOf, 8},
                                                           {"input.alignment", Rel::kGe, 4},
                                                           {"gate_weight.alignment", Rel::kGe, 4},
                                                           {"down_weight.alignment", Rel::kGe, 4},
                                                           {"up_weight.alignment", Rel::kGe, 4},
                                                       });
constexpr std::array kFamily = {
    CudaSpec("cuda.moe.fused", &LaunchTiles,
             {.dtypes = Mask(DType::kF16, DType::kBF16),
              .constraints = kTileConstraints,
              .accepts = kAcceptsAll,
              // It ranks before torch's row, because it takes 0.28 to 0.94 of that row's time:
              // bench/results/no-harm-kernels-experts-nvidia-h200.json.
              .priority = 40,
              .workspace = &TilesWorkspace}),
    CudaSpec("cuda.moe.fused.fp32", &LaunchSums,
             {.operation = "moe.fused",
              .constraints = kConstraints,
              .accepts = kAcceptsAll,
              .strides = Strides::kAny,
              .priority = kNotYetMeasured - 1,
              .numerics = "fp32",
              .workspace = &SumsWorkspace}),
};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
