// quantize.asymmetric on CUDA: a warp or a block for each run of values that share a scale, which is read twice.
//   input [..., k]  f32|f16|bf16, contiguous     values [..., k] or [..., k / 2]  codes, contiguous
//   scale f32, zero_point i32: one for each index of the first axis, or for each group of the last one
// Workspace: none. Deterministic, to the bit of the definition. Safe in graph captures. Source: own.
#include "kernels/quantize/codes_cuda.h"
#include "kernels/spec.h"
#include "ops/quantize/asymmetric.h"

namespace lz {
namespace {
using namespace lz::ops::quantize_asymmetric;

constexpr int kRunThreads = 128;    // of a block of short runs: a warp for each
constexpr int kLongThreads = 256;   // of a block for one run
constexpr int64_t kLongRun = 4096;  // values

struct Runs {
  const void* x;
  uint8_t* values;
  float* scale;
  int32_t* zero_point;
  int64_t runs, length;
  CodeRange range;
};

struct Bounds {
  float low = 0, high = 0;  // high: infinity where a value is not finite
};
__device__ Bounds Join(Bounds a, Bounds b) { return {fminf(a.low, b.low), fmaxf(a.high, b.high)}; }

// Of the run's lanes: a warp, or the block.
template <bool kBlock>
__device__ Bounds JoinLanes(Bounds mine) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float low = __shfl_xor_sync(0xffffffffu, mine.low, step);
    const float high = __shfl_xor_sync(0xffffffffu, mine.high, step);
    mine = Join(mine, {low, high});
  }
  if constexpr (kBlock) {
    __shared__ float lows[kLongThreads / kWarp], highs[kLongThreads / kWarp];
    __syncthreads();  // those of the run before have been read
    if (threadIdx.x % kWarp == 0) {
      lows[threadIdx.x / kWarp] = mine.low;
      highs[threadIdx.x / kWarp] = mine.high;
    }
    __syncthreads();
    for (int w = 0; w < kLongThreads / kWarp; ++w) mine = Join(mine, {lows[w], highs[w]});
  }
  return mine;
}

struct ScaleAndZero {
  float scale;
  int32_t zero;
};
__device__ ScaleAndZero MakeScale(Bounds b, CodeRange range) {
  if (b.high == HUGE_VALF) return {nanf(""), 0};
  const float scale = fmaxf((b.high - b.low) / (range.high - range.low), 0x1p-126f);
  const float zero = range.low - rintf(b.low / scale);
  return {scale, int32_t(fminf(fmaxf(zero, range.low), range.high))};
}
// Codes beyond 2^24 are clamped, whatever the sum rounds to.
__device__ uint8_t AsymmetricCode(float x, ScaleAndZero s, CodeRange range) {
  const float q = x / s.scale;
  return isnan(q) ? 0 : uint8_t(int(fminf(fmaxf(rintf(q) + float(s.zero), range.low), range.high)));
}

template <class T, int kN, bool kWide, CodeKind kKind, bool kBlock>
__global__ void __launch_bounds__(kLongThreads) Asymmetric(const Runs a) {
  const int64_t items = a.length / kN;
  for (int64_t base = int64_t(blockIdx.x) * blockDim.y; base < a.runs; base += int64_t(gridDim.x) * blockDim.y) {
    const int64_t run = base + threadIdx.y, begin = run * a.length;
    const T* x = static_cast<const T*>(a.x) + begin;
    const int64_t mine = run < a.runs ? items : 0;
    Bounds bounds;
    for (int64_t i = threadIdx.x; i < mine; i += blockDim.x) {
      const Vector<T, kN> v = LoadVector<T, kN, kWide>(x, i * kN);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const float value = ToFloat(v.v[j]);
        bounds = Join(bounds, isfinite(value) ? Bounds{value, value} : Bounds{0, HUGE_VALF});
      }
    }
    bounds = JoinLanes<kBlock>(bounds);
    if (run >= a.runs) continue;
    const ScaleAndZero s = MakeScale(bounds, a.range);
    if (threadIdx.x == 0) {
      a.scale[run] = s.scale;
      a.zero_point[run] = s.zero;
    }
    for (int64_t i = threadIdx.x; i < mine; i += blockDim.x) {
      const Vector<T, kN> v = LoadVector<T, kN, kWide>(x, i * kN);
      uint8_t codes[kN];
#pragma unroll
      for (int j = 0; j < kN; ++j) codes[j] = AsymmetricCode(ToFloat(v.v[j]), s, a.range);
      StoreCodes<kKind, kN, kWide>(a.values + begin / (kPacks<kKind> ? 2 : 1), i * kN, codes);
    }
  }
}

template <class T, int kN, bool kWide, CodeKind kKind>
int32_t Run(const Runs& a, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 1 << 20;
  if (a.length >= kLongRun) {
    const int64_t blocks = a.runs < kMaxBlocks ? a.runs : kMaxBlocks;
    Asymmetric<T, kN, kWide, kKind, true><<<unsigned(blocks), kLongThreads, 0, stream>>>(a);
  } else {
    constexpr int kRuns = kRunThreads / kWarp;
    const int64_t blocks = (a.runs + kRuns - 1) / kRuns;
    Asymmetric<T, kN, kWide, kKind, false>
        <<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), dim3(kWarp, kRuns), 0, stream>>>(a);
  }
  return Launched();
}

template <class T, CodeKind kKind>
int32_t RunKind(const Runs& a, cudaStream_t stream) {
  constexpr int kN = kLanes<T>;
  if (Aligned(a.x, a.values) && a.length % kN == 0) return Run<T, kN, true, kKind>(a, stream);
  return Run < T, kPacks<kKind> ? 2 : 1, false, kKind > (a, stream);
}

int32_t LaunchRuns(const lz_kernel_args* args, int64_t runs) {
  const lz_tensor* t = args->tensors;
  const int64_t format = args->scalars[kDtype].value.i, count = NumElements(t[kInput]);
  const Runs a = {.x = Data<void>(t[kInput]),
                  .values = Data<uint8_t>(t[kValues]),
                  .scale = Data<float>(t[kScale]),
                  .zero_point = Data<int32_t>(t[kZeroPoint]),
                  .runs = runs,
                  .length = runs > 0 ? count / runs : 0,
                  .range = RangeOf(format, true)};
  if (runs == 0) return 0;
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  return WithCudaFloat(DTypeOf(t[kInput]), [&](auto v) {
    using T = decltype(v);
    return KindOf(format) == CodeKind::kByte ? RunKind<T, CodeKind::kByte>(a, stream)
                                             : RunKind<T, CodeKind::kNibble>(a, stream);
  });
}
int32_t LaunchRows(const lz_kernel_args* args) { return LaunchRuns(args, args->tensors[kInput].shape[0]); }
int32_t LaunchGroups(const lz_kernel_args* args) { return LaunchRuns(args, NumElements(args->tensors[kScale])); }

constexpr auto kBytes = std::to_array<int64_t>({ops::kInt8, ops::kUInt8});
constexpr auto kFirstAxis = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"axis.given", Rel::kEq, 1, {}, ReasonCode::kQuantGranularity},
    {"axis", Rel::kEq, 0, {}, ReasonCode::kQuantGranularity},
    {"input.ndim", Rel::kGe, 2},  // no byte of two runs
});
constexpr auto kGroups = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {.field = "format", .rel = Rel::kInSet, .set = kBytes, .code = ReasonCode::kQuantFormatUnsupported},
    {"group_size", Rel::kGe, 1, {}, ReasonCode::kQuantGranularity},
    {"block_rows", Rel::kEq, 1, {}, ReasonCode::kQuantGranularity},
});
constexpr auto kPairedGroups = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"group_size", Rel::kGe, 2, {}, ReasonCode::kQuantGranularity},
    {"group_size", Rel::kMultipleOf, 2, {}, ReasonCode::kQuantGranularity},
    {"block_rows", Rel::kEq, 1, {}, ReasonCode::kQuantGranularity},
});
constexpr auto kRowAccepts = std::to_array<std::string_view>({"axis"});
constexpr auto kGroupAccepts = std::to_array<std::string_view>({"group_size", "block_rows"});

constexpr KernelSpec Row(std::string_view id, std::span<const Constraint> constraints,
                         std::span<const std::string_view> accepts, lz_launch_fn launch) {
  return CudaSpec(id, launch,
                  {.operation = "quantize.asymmetric",
                   .constraints = constraints,
                   .accepts = accepts,
                   .strides = Strides::kContiguous});
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Row("cuda.quantize.asymmetric.rows", kFirstAxis, kRowAccepts, &LaunchRows),
    Row("cuda.quantize.asymmetric.groups", kGroups, kGroupAccepts, &LaunchGroups),
    Row("cuda.quantize.asymmetric.groups.paired", kPairedGroups, kGroupAccepts, &LaunchGroups),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
