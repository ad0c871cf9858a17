// dequantize on CUDA: every format, one pass; a thread takes two vectors of a row's codes.
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
constexpr int kCodes = 8;  // of a vector
constexpr int kItems = 2;  // vectors of a thread, which are on their way together

struct Problem {
  const uint8_t* values;
  DeviceRows value_rows;
  void* out;
  int64_t rows, k;  // k values of a row
  ScaleMap scale, zero_point, tensor_scale;
  int32_t flip, bias;  // an integer is (code ^ flip) - bias
};

// kN codes of a row, which share scale and zero point, as values. What runs for each code is known when it is compiled:
// a choice for each would take longer than the memory does.
template <class T, CodeKind kKind, int kN>
struct Item {
  static constexpr bool kPacked = kPacks<kKind>;
  static constexpr int kBytes = kPacked && kN > 1 ? kN / 2 : kN;
  const Problem& p;
  int64_t scale_row, zero_row;
  float tensor_scale;

  __device__ Item(const Problem& problem, int64_t row)
      : p(problem), scale_row(p.scale.Row(row)), zero_row(p.zero_point.data ? p.zero_point.Row(row) : 0) {
    const ScaleMap& outer = p.tensor_scale;
    tensor_scale = outer.data ? LoadFloat(outer.data, outer.Row(row), outer.type) : 1.0f;
  }
  __device__ float Number(int code, int32_t zero) const {
    if constexpr (kKind == CodeKind::kFP8E4M3) return F8ToFloat(uint8_t(code), __NV_E4M3);
    if constexpr (kKind == CodeKind::kFP8E5M2) return F8ToFloat(uint8_t(code), __NV_E5M2);
    if constexpr (kKind == CodeKind::kE2M1) return E2M1Value(code);
    const int number = (code ^ p.flip) - p.bias;
    return zero == 0 ? float(number) : float(int64_t(number) - zero);
  }
  // Of value i on; `odd`: of a single one, that it is in the upper half of its byte.
  __device__ Vector<T, kN> Values(const Vector<uint8_t, kBytes>& bytes, int64_t i, bool odd) const {
    const float scale = LoadFloat(p.scale.data, p.scale.At(scale_row, i), p.scale.type);
    const ScaleMap& zeros = p.zero_point;
    const int32_t zero = zeros.data ? static_cast<const int32_t*>(zeros.data)[zeros.At(zero_row, i)] : 0;
    Vector<T, kN> result;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const int byte = bytes.v[kPacked ? j / 2 : j], code = !kPacked ? byte : j % 2 != 0 || odd ? byte >> 4 : byte & 15;
      float v = Number(code, zero) * scale;
      if (p.tensor_scale.data) v *= tensor_scale;
      result.v[j] = FromFloat<T>(v);
    }
    return result;
  }
};

// kWide: vectors of codes that share scale and zero point, in rows that begin at multiples of vectors. Else one by one.
template <class T, CodeKind kKind, bool kWide>
__global__ void __launch_bounds__(kThreads) Dequantize(const Problem p) {
  constexpr int kN = kWide ? kCodes : 1;
  constexpr bool kHalves = kPacks<kKind> && !kWide;
  using I = Item<T, kKind, kN>;
  const int64_t items = p.k / kN, step = int64_t(gridDim.y) * blockDim.x;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const uint8_t* values = p.values + p.value_rows[row];
    T* out = static_cast<T*>(p.out) + row * p.k;
    const I one(p, row);
    for (int64_t item = int64_t(blockIdx.y) * blockDim.x + threadIdx.x; item < items; item += kItems * step) {
      Vector<uint8_t, I::kBytes> bytes[kItems];
#pragma unroll
      for (int n = 0; n < kItems; ++n) {
        const int64_t at = item + n * step;
        if (at < items) bytes[n] = LoadVector<uint8_t, I::kBytes, kWide>(values, kHalves ? at / 2 : at * I::kBytes);
      }
#pragma unroll
      for (int n = 0; n < kItems; ++n) {
        const int64_t at = item + n * step;
        if (at >= items) break;
        *reinterpret_cast<Vector<T, kN>*>(out + at * kN) = one.Values(bytes[n], at * kN, kHalves && at % 2 != 0);
      }
    }
  }
}

template <class T, CodeKind kKind, bool kWide>
int32_t Run(const Problem& p, cudaStream_t stream) {
  constexpr int64_t kMaxRows = int64_t{1} << 30, kManyBlocks = 1024;
  const int64_t items = p.k / (kWide ? kCodes : 1);
  const int64_t threads = items < kThreads ? (items + kWarp - 1) / kWarp * kWarp : kThreads;
  // Few rows are spread over blocks before a thread has several vectors.
  const int64_t chunks = (items + threads - 1) / threads, of_thread = p.rows * chunks < kManyBlocks ? 1 : kItems;
  const int64_t parts = (chunks + of_thread - 1) / of_thread;
  const dim3 grid(unsigned(p.rows < kMaxRows ? p.rows : kMaxRows), unsigned(parts < kMaxGridY ? parts : kMaxGridY));
  Dequantize<T, kKind, kWide><<<grid, unsigned(threads), 0, stream>>>(p);
  return Launched();
}

// Whether kCodes values from each multiple of kCodes on have one element of `scale`.
bool IsShared(const ScaleMap& scale) { return scale.last_stride == 0 || scale.last_block % kCodes == 0; }

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
               .scale = ScaleMap(t[kScale], shape, axis)};
  if (ops::IsInteger(format) && !ops::IsUnsigned(format)) p.flip = p.bias = pack == 2 ? 8 : 128;
  if (Given(t[kZeroPoint])) p.zero_point = ScaleMap(t[kZeroPoint], shape, axis);
  if (Given(t[kTensorScale])) p.tensor_scale = ScaleMap(t[kTensorScale], shape, -1);
  if (p.rows == 0 || p.k == 0) return 0;
  const bool wide = p.k % kCodes == 0 && Aligned(p.values, p.out) && p.value_rows.Aligned(kCodes / pack) &&
                    IsShared(p.scale) && IsShared(p.zero_point);
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  return WithCudaFloat(DTypeOf(t[kOutput]), [&](auto v) {
    using T = decltype(v);
    return WithKind(KindOf(format), [&](auto kind) {
      constexpr CodeKind kKind = decltype(kind)::value;
      return wide ? Run<T, kKind, true>(p, stream) : Run<T, kKind, false>(p, stream);
    });
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {CudaSpec(
    "cuda.dequantize", &Launch, {.dtypes = ops::kValueDTypes, .constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
