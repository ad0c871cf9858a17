// dequantize on CUDA: every format, one pass; a thread takes some codes of a row.
//   values [..., n]  codes, rows dense     scale, zero_point, tensor_scale: any shape that the contract takes
//   output [..., n] or [..., 2 n]  f32|f16|bf16, contiguous
// Workspace: none. Deterministic, to the bit of the definition. Safe in graph captures. Source: own.
#include "kernels/quantize/codes_cuda.h"
#include "kernels/spec.h"
#include "ops/dequantize/scaled.h"

namespace lz {
namespace {
using namespace lz::ops::dequantize_scaled;

constexpr int kThreads = 256;
constexpr int kCodes = 8;  // of a thread

struct Problem {
  const uint8_t* values;
  DeviceRows value_rows;
  void* out;
  int64_t rows, k;  // k values of a row
  ScaleMap scale, zero_point, tensor_scale;
  int32_t format;
};

__device__ inline float Number(int code, int32_t format, const Problem& p, int64_t zero_at) {
  switch (format) {
    case ops::kFP8E4M3:
    case ops::kMXFP8E4M3: return F8ToFloat(uint8_t(code), __NV_E4M3);
    case ops::kFP8E5M2:
    case ops::kMXFP8E5M2: return F8ToFloat(uint8_t(code), __NV_E5M2);
    case ops::kMXFP4:
    case ops::kNVFP4: return E2M1Value(code);
    default: break;
  }
  const int number = format == ops::kInt8 ? int(int8_t(code)) : format == ops::kInt4 ? (code ^ 8) - 8 : code;
  if (!p.zero_point.data) return float(number);
  return float(int64_t(number) - static_cast<const int32_t*>(p.zero_point.data)[zero_at]);
}

// T: of the output. kWide: a row of codes and of values begins at multiples of its vectors.
template <class T, bool kPacked, bool kWide>
__global__ void __launch_bounds__(kThreads) Dequantize(const Problem p) {
  constexpr int kN = kWide ? kCodes : kPacked ? 2 : 1, kBytes = kPacked ? kN / 2 : kN;
  const int64_t items = p.k / kN;
  const bool even = (p.scale.last_stride == 0 || p.scale.last_block % kN == 0);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const uint8_t* values = p.values + p.value_rows[row];
    T* out = static_cast<T*>(p.out) + row * p.k;
    const int64_t scale_row = p.scale.Row(row), zero_row = p.zero_point.data ? p.zero_point.Row(row) : 0;
    const bool second = p.tensor_scale.data != nullptr;
    const float tensor_scale =
        second ? LoadFloat(p.tensor_scale.data, p.tensor_scale.Row(row), p.tensor_scale.type) : 1;
    for (int64_t item = int64_t(blockIdx.y) * blockDim.x + threadIdx.x; item < items;
         item += int64_t(gridDim.y) * blockDim.x) {
      const int64_t i = item * kN;
      const Vector<uint8_t, kBytes> bytes = LoadVector<uint8_t, kBytes, kWide>(values, item * kBytes);
      Vector<T, kN> result;
      float s = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        if (j == 0 || !even) s = LoadFloat(p.scale.data, p.scale.At(scale_row, i + j), p.scale.type);
        const int byte = bytes.v[kPacked ? j / 2 : j];
        const int code = !kPacked ? byte : j % 2 == 0 ? byte & 15 : byte >> 4;
        float v = Number(code, p.format, p, p.zero_point.data ? p.zero_point.At(zero_row, i + j) : 0) * s;
        if (second) v *= tensor_scale;
        result.v[j] = FromFloat<T>(v);
      }
      if constexpr (kWide) {
        *reinterpret_cast<Vector<T, kN>*>(out + i) = result;
      } else {
#pragma unroll
        for (int j = 0; j < kN; ++j) out[i + j] = result.v[j];
      }
    }
  }
}

template <class T, bool kPacked, bool kWide>
int32_t Run(const Problem& p, cudaStream_t stream) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;
  const int64_t items = p.k / (kWide ? kCodes : kPacked ? 2 : 1), chunks = (items + kThreads - 1) / kThreads;
  const int64_t threads = items < kThreads ? (items + kWarp - 1) / kWarp * kWarp : kThreads;
  const dim3 grid(unsigned(p.rows < kMaxRows ? p.rows : kMaxRows), unsigned(chunks < kMaxGridY ? chunks : kMaxGridY));
  Dequantize<T, kPacked, kWide><<<grid, unsigned(threads), 0, stream>>>(p);
  return Launched();
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_tensor& values = t[kValues];
  const int64_t format = args->scalars[kFormat].value.i, pack = ops::kQuantInfo[size_t(format)].pack;
  const ops::QuantShape shape = ops::QuantShape::Of(values, pack);
  const int64_t axis = args->scalars[kAxis].given ? args->scalars[kAxis].value.i : -1;
  Problem p = {.values = Data<uint8_t>(values),
               .value_rows = DeviceRows(values),
               .out = Data<void>(t[kOutput]),
               .rows = NumRows(values),
               .k = shape.size[shape.ndim - 1],
               .scale = ScaleMap(t[kScale], shape, axis),
               .format = int32_t(format)};
  if (Given(t[kZeroPoint])) p.zero_point = ScaleMap(t[kZeroPoint], shape, axis);
  if (Given(t[kTensorScale])) p.tensor_scale = ScaleMap(t[kTensorScale], shape, -1);
  if (p.rows == 0 || p.k == 0) return 0;
  const bool wide = p.k % kCodes == 0 && Aligned(p.values, p.out) && p.value_rows.Aligned(kCodes / pack);
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  return WithCudaFloat(DTypeOf(t[kOutput]), [&](auto v) {
    using T = decltype(v);
    if (pack == 2) return wide ? Run<T, true, true>(p, stream) : Run<T, true, false>(p, stream);
    return wide ? Run<T, false, true>(p, stream) : Run<T, false, false>(p, stream);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {CudaSpec(
    "cuda.dequantize", &Launch, {.dtypes = ops::kValueDTypes, .constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
