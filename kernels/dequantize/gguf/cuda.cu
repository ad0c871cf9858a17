// dequantize_gguf on CUDA: a thread writes 8 values, whose scale is read once.
//   data   [n, row_bytes]  u8, rows dense, each begins at an even address
//   output [n, columns]    f32|f16|bf16, contiguous
// Workspace: none. Deterministic, to the bit of the definition, for products of scales and codes are exact in FP32.
// Safe in graph captures. Source: own.
#include "kernels/gemm/gguf/blocks_cuda.h"
#include "kernels/spec.h"
#include "ops/dequantize/gguf.h"

namespace lz {
namespace {
using namespace lz::ops::dequantize_gguf;

constexpr int kThreads = 256;
constexpr int kValues = 8;  // of a thread

template <class T, int kFormat>
__global__ void __launch_bounds__(kThreads)
    Dequantize(const uint8_t* data, int64_t stride, int64_t rows, int64_t columns, T* out) {
  using F = gguf_cuda::Facts<kFormat>;
  const int64_t i = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * kValues;
  if (i >= columns) return;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const uint8_t* block = data + row * stride + i / F::kValues * F::kBytes;
    const int first = int(i % F::kValues);
    float scale, offset;
    gguf_cuda::BlockFactors<kFormat>(block, first / 32, first % 32 / 16, &scale, &offset);
    Vector<T, kLanes<T>>* to = reinterpret_cast<Vector<T, kLanes<T>>*>(out + row * columns + i);
#pragma unroll
    for (int v = 0; v < kValues / kLanes<T>; ++v) {
      Vector<T, kLanes<T>> values;
#pragma unroll
      for (int j = 0; j < kLanes<T>; ++j) {
        const float code = float(gguf_cuda::CodeAt<kFormat>(block, first + v * kLanes<T> + j));
        values.v[j] = FromFloat<T>(F::kMinima ? fmaf(scale, code, offset) : scale * code);
      }
      to[v] = values;
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  constexpr int64_t kMostRows = int64_t{1} << 30, kOfBlock = kThreads * kValues;
  const lz_tensor &data = args->tensors[kData], &out = args->tensors[kOutput];
  const int64_t rows = out.shape[0], columns = out.shape[1], chunks = (columns + kOfBlock - 1) / kOfBlock;
  if (rows == 0 || columns == 0) return LZ_LAUNCH_DONE;
  if (chunks > kMaxGridY || !Aligned(Data<void>(out))) return LZ_LAUNCH_REFUSED;
  const dim3 grid(unsigned(rows < kMostRows ? rows : kMostRows), unsigned(chunks));
  return gguf_cuda::WithFormat(args->scalars[kFormat].value.i, [&](auto format) {
    return WithCudaFloat(DTypeOf(out), [&](auto v) {
      using T = decltype(v);
      Dequantize<T, decltype(format)::value><<<grid, kThreads, 0, static_cast<cudaStream_t>(args->stream)>>>(
          Data<const uint8_t>(data), data.strides[0], rows, columns, Data<T>(out));
      return Launched();
    });
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver, {"data.alignment", Rel::kGe, 1}});
constexpr std::array kFamily = {
    CudaSpec("cuda.dequantize.gguf", &Launch,
             {.dtypes = Mask(DType::kU8), .constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
