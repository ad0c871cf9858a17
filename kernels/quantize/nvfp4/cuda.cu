// quantize.nvfp4 on CUDA. Of rows: a launch, a block a row. Of a tensor: one for its largest magnitude, one for codes.
//   input [..., k]  f32|f16|bf16, contiguous     values [..., k / 2]  u8     scale [..., k / 16]  e4m3
//   tensor_scale []  f32
// Workspace: 2 KiB, the largest magnitudes of parts of the tensor. Deterministic, to the bit of the definition. Safe in
// graph captures. Source: own.
#include <cfloat>

#include "kernels/quantize/codes_cuda.h"
#include "kernels/spec.h"
#include "ops/quantize/nvfp4.h"

namespace lz {
namespace {
using namespace lz::ops::quantize_nvfp4;

constexpr int kThreads = 256, kParts = 512, kSize = int(kGroup);

struct Problem {
  const void* x;
  uint8_t *values, *scale;
  float *tensor_scale, *parts;
  int64_t rows, k;  // one row: the whole tensor
};

__device__ float BlockLargest(float v) {
  __shared__ float warps[kThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
  __syncthreads();  // those of the call before have been read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = v;
  __syncthreads();
  for (const float w : warps) v = fmaxf(v, w);
  return v;
}

// The largest finite magnitude of x[first], x[first + step], ...
template <class T>
__device__ float LargestFinite(const T* x, int64_t n, int64_t first, int64_t step) {
  float most = 0;
#pragma unroll 4
  for (int64_t i = first; i < n; i += step) {
    const float a = fabsf(ToFloat(x[i]));
    if (isfinite(a)) most = fmaxf(most, a);
  }
  return most;
}

template <class T>
__global__ void __launch_bounds__(kThreads) LargestOfParts(const Problem p) {
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const float most =
      BlockLargest(LargestFinite(static_cast<const T*>(p.x), p.k, thread, int64_t(gridDim.x) * kThreads));
  if (threadIdx.x == 0) p.parts[blockIdx.x] = most;
}

template <class T>
__device__ void QuantizeGroup(const Problem& p, int64_t group, float encoding, float decoding) {
  const T* x = static_cast<const T*>(p.x) + group * kSize;
  float v[kSize], amax = 0;
  bool finite = true;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    v[j] = ToFloat(x[j]);
    finite &= bool(isfinite(v[j]));
    amax = fmaxf(amax, fabsf(v[j]));
  }
  const float sixth = encoding * (1.0f / 6);
  const uint8_t code = __nv_cvt_float_to_fp8(finite ? amax * sixth : nanf(""), __NV_SATFINITE, __NV_E4M3);
  p.scale[group] = code;
  const float reciprocal = 1.0f / (F8ToFloat(code, __NV_E4M3) * decoding);
  const float factor = reciprocal > FLT_MAX ? FLT_MAX : reciprocal;
  uint8_t codes[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) codes[j] = E2M1Code(v[j] * factor);
  StoreCodes<CodeKind::kE2M1, kSize, false>(p.values + group * (kSize / 2), 0, codes);
}

// kRows: a row a block, whose largest magnitude it finds; else groups of a tensor, the same of whose parts are known.
template <class T, bool kRows>
__global__ void __launch_bounds__(kThreads) Quantize(const Problem p, int parts) {
  const int64_t groups = p.k / kSize;
  for (int64_t row = kRows ? blockIdx.x : 0; row < p.rows; row += kRows ? gridDim.x : p.rows) {
    const float most = kRows ? LargestFinite(static_cast<const T*>(p.x) + row * p.k, p.k, threadIdx.x, kThreads)
                             : LargestFinite(p.parts, parts, threadIdx.x, kThreads);
    const float largest = BlockLargest(most);
    const float encoding = largest == 0 ? 1.0f : fminf(2688.0f / largest, FLT_MAX), decoding = 1.0f / encoding;
    const int64_t first = kRows ? threadIdx.x : int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (kRows ? threadIdx.x == 0 : first == 0) p.tensor_scale[row] = decoding;
    const int64_t step = kRows ? kThreads : int64_t(gridDim.x) * kThreads;
    for (int64_t g = first; g < groups; g += step) QuantizeGroup<T>(p, row * groups + g, encoding, decoding);
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &x = t[kInput];
  const bool rows = args->scalars[kPerRow].value.i != 0;
  const int64_t count = NumElements(x);
  const Problem p = {.x = Data<void>(x),
                     .values = Data<uint8_t>(t[kValues]),
                     .scale = Data<uint8_t>(t[kScale]),
                     .tensor_scale = Data<float>(t[kTensorScale]),
                     .parts = static_cast<float*>(args->workspace),
                     .rows = NumElements(t[kTensorScale]),  // one for all rows without values
                     .k = rows ? x.shape[x.ndim - 1] : count};
  if (p.rows == 0) return 0;
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  return WithCudaFloat(DTypeOf(x), [&](auto v) {
    using T = decltype(v);
    constexpr int64_t kMaxBlocks = 1 << 20;
    if (rows) {
      Quantize<T, true><<<unsigned(p.rows < kMaxBlocks ? p.rows : kMaxBlocks), kThreads, 0, stream>>>(p, 0);
      return Launched();
    }
    const int64_t chunks = (count + kThreads * kSize - 1) / (kThreads * kSize);
    const int parts = int(chunks < 1 ? 1 : chunks < kParts ? chunks : kParts);
    LargestOfParts<T><<<unsigned(parts), kThreads, 0, stream>>>(p);
    const int64_t blocks = chunks < 1 ? 1 : chunks < kMaxBlocks ? chunks : kMaxBlocks;
    Quantize<T, false><<<unsigned(blocks), kThreads, 0, stream>>>(p, parts);
    return Launched();
  });
}
uint64_t Workspace(const lz_kernel_args*) { return kParts * sizeof(float); }

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {CudaSpec(
    "cuda.quantize.nvfp4", &Launch,
    {.constraints = kConstraints, .accepts = kAcceptsAll, .strides = Strides::kContiguous, .workspace = &Workspace})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
