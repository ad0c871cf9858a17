// RMSNorm over the last axis on CUDA: one warp a row up to 1024 elements, one block a row above.
//   input  [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight [hidden]       dtype of input, optional
//   output [..., hidden]  dtype of input; may alias input
// Workspace: none. Deterministic: sums in a fixed order. Safe in graph captures. Source: own; formula from
// arXiv:1910.07467 eq. 4. FP32 sums; 16-byte loads where addresses, strides and hidden divide by 16 bytes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda.h"
#include "ops/norm/rms.h"

namespace lz {
namespace {
using namespace lz::ops::norm_rms;

constexpr int kWarp = 32;
constexpr int kRowsPerBlock = 4;         // of warp-sized rows
constexpr int kBlock = 512;              // threads of a block-sized row
constexpr int64_t kWarpRowLimit = 1024;  // elements

__device__ float ToFloat(float v) { return v; }
__device__ float ToFloat(__half v) { return __half2float(v); }
__device__ float ToFloat(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ void Put(float* p, float v) { *p = v; }
__device__ void Put(__half* p, float v) { *p = __float2half_rn(v); }
__device__ void Put(__nv_bfloat16* p, float v) { *p = __float2bfloat16_rn(v); }

template <class T, int kN>
struct alignas(sizeof(T) * kN) Vector {
  T v[kN];
};

__device__ float WarpSum(float v) {
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}

// The sum over the row's threads, in all of them.
template <bool kWarpRows>
__device__ float RowSum(float v) {
  v = WarpSum(v);
  if constexpr (kWarpRows) return v;
  __shared__ float parts[kBlock / kWarp];
  __syncthreads();  // the previous row has read its parts
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  v = 0;
  for (int i = 0; i < kBlock / kWarp; ++i) v += parts[i];
  return v;
}

template <class T, int kN, bool kWarpRows>
__global__ void RmsNorm(const T* x, const T* weight, T* out, DeviceRows x_rows, int64_t rows, int64_t hidden, float eps,
                        float offset) {
  using V = Vector<T, kN>;
  const int64_t n = hidden / kN;
  for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += int64_t(gridDim.x) * blockDim.y) {
    const V* from = reinterpret_cast<const V*>(x + x_rows[row]);
    V* to = reinterpret_cast<V*>(out + row * hidden);
    float sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const V a = from[i];
#pragma unroll
      for (int j = 0; j < kN; ++j) sum += ToFloat(a.v[j]) * ToFloat(a.v[j]);
    }
    const float scale = 1.0f / sqrtf(RowSum<kWarpRows>(sum) / float(hidden) + eps);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const V a = from[i];
      V gain, result;
      if (weight) gain = reinterpret_cast<const V*>(weight)[i];
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const float g = (weight ? ToFloat(gain.v[j]) : 1.0f) + offset;
        Put(&result.v[j], ToFloat(a.v[j]) * scale * g);
      }
      to[i] = result;
    }
  }
}

template <class T, int kN>
int32_t Run(const lz_kernel_args* args, const T* x, const T* weight, T* out, const DeviceRows& x_rows, int64_t rows,
            int64_t hidden) {
  const float eps = float(args->scalars[kEps].value.f), offset = float(args->scalars[kWeightOffset].value.f);
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  constexpr int64_t kMaxGrid = 1 << 20;  // above it blocks take several rows
  if (hidden <= kWarpRowLimit) {
    const int64_t blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
    const unsigned grid = unsigned(blocks < kMaxGrid ? blocks : kMaxGrid);
    RmsNorm<T, kN, true>
        <<<grid, dim3(kWarp, kRowsPerBlock), 0, stream>>>(x, weight, out, x_rows, rows, hidden, eps, offset);
  } else {
    const unsigned grid = unsigned(rows < kMaxGrid ? rows : kMaxGrid);
    RmsNorm<T, kN, false><<<grid, kBlock, 0, stream>>>(x, weight, out, x_rows, rows, hidden, eps, offset);
  }
  return int32_t(cudaPeekAtLastError());
}

template <class T>
int32_t Choose(const lz_kernel_args* args) {
  const lz_tensor& x = args->tensors[kInput];
  const lz_tensor& w = args->tensors[kWeight];
  const int64_t hidden = x.shape[x.ndim - 1], rows = NumRows(x);
  if (rows == 0 || hidden == 0) return 0;
  const T* px = Data<const T>(x);
  const T* pw = Given(w) ? Data<const T>(w) : nullptr;
  T* pout = Data<T>(args->tensors[kOutput]);
  const DeviceRows x_rows(x);
  constexpr int kN = 16 / int(sizeof(T));
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(px) | reinterpret_cast<uintptr_t>(pw) | reinterpret_cast<uintptr_t>(pout);
  const OnDevice device(x);
  if (device.error() != cudaSuccess) return int32_t(device.error());
  if (addresses % 16 == 0 && hidden % kN == 0 && x_rows.Aligned(kN)) {
    return Run<T, kN>(args, px, pw, pout, x_rows, rows, hidden);
  }
  return Run<T, 1>(args, px, pw, pout, x_rows, rows, hidden);
}

int32_t Launch(const lz_kernel_args* args) {
  switch (DTypeOf(args->tensors[kInput])) {
    case DType::kF32: return Choose<float>(args);
    case DType::kF16: return Choose<__half>(args);
    case DType::kBF16: return Choose<__nv_bfloat16>(args);
    default: return 1;
  }
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"weight.same_dtype", Rel::kEq, 1},
});
constexpr std::array<std::string_view, 2> kAccepts = {"weight", "weight_offset"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "cuda.norm.rms",
     .operation = "norm.rms",
     .platform = Platform::kCuda,
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAccepts,
     .strides = Strides::kLastDimDense,
     .priority = 60,
     .deterministic = true,
     .cuda_graph_safe = true,
     .launch = &Launch},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
