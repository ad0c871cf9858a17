// pooling.sequence on CUDA: a block takes 32 columns of one sequence, 8 tokens at once.
//   input [b, s, d]  f32|f16|bf16, last dim dense     mask [b, s]  bool|i32|i64, last dim dense     lengths [b] i32|i64
//   output [b, d]  contiguous
// Workspace: none. Deterministic. Safe in graph captures. Source: own. FP32 sums. A length outside [0, s] counts as the
// nearest inside: the host cannot see it without waiting for the device.
#include "kernels/cuda_types.h"
#include "kernels/spec.h"
#include "ops/pooling/sequence.h"

namespace lz {
namespace {
using namespace lz::ops::pooling_sequence;

constexpr int kTokens = 8;

struct Problem {
  const void *x, *mask, *lengths;
  void* out;
  int64_t b, s, d, batch, token, mask_row, length_stride;
  DType mask_type;
  bool wide_lengths;
  int32_t mode;

  __device__ bool Valid(int64_t sequence, int64_t i, int64_t length) const {
    if (i >= length || !mask) return i < length;
    const int64_t at = sequence * mask_row + i;
    if (mask_type == DType::kBool) return static_cast<const uint8_t*>(mask)[at] != 0;
    return LoadIndex(mask, at, mask_type == DType::kI64) != 0;
  }
};

// What a thread has seen of its column.
struct Pooled {
  float value;
  int64_t count, place;  // of the value, for first and last
};
__device__ void Add(Pooled& p, float value, int64_t count, int64_t place, int32_t mode) {
  if (count == 0) return;
  if (p.count == 0) {
    p = {value, count, place};
    return;
  }
  p.count += count;
  if (mode == kMean) p.value += value;
  if (mode == kMax && (value > p.value || isnan(value))) p.value = value;
  if (mode == kFirst ? place < p.place : mode == kLast && place > p.place) {
    p.value = value;
    p.place = place;
  }
}

template <class T>
__global__ void __launch_bounds__(kWarp* kTokens) Pool(const Problem p) {
  __shared__ Pooled parts[kTokens][kWarp];
  const int64_t columns = (p.d + kWarp - 1) / kWarp;
  for (int64_t item = blockIdx.x; item < p.b * columns; item += gridDim.x) {
    const int64_t sequence = item / columns, column = item % columns * kWarp + threadIdx.x;
    int64_t length = p.s;
    if (p.lengths) {
      length = LoadIndex(p.lengths, sequence * p.length_stride, p.wide_lengths);
      length = length < 0 ? 0 : length < p.s ? length : p.s;
    }
    Pooled mine = {};
    for (int64_t i = threadIdx.y; i < length; i += kTokens) {
      if (!p.Valid(sequence, i, length) || column >= p.d) continue;
      const T value = static_cast<const T*>(p.x)[sequence * p.batch + i * p.token + column];
      Add(mine, ToFloat(value), 1, i, p.mode);
    }
    __syncthreads();  // the parts before have been read
    parts[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y != 0 || column >= p.d) continue;
    for (int t = 1; t < kTokens; ++t) {
      const Pooled& other = parts[t][threadIdx.x];
      Add(mine, other.value, other.count, other.place, p.mode);
    }
    if (p.mode == kMean && mine.count > 0) mine.value /= float(mine.count);
    static_cast<T*>(p.out)[sequence * p.d + column] = FromFloat<T>(mine.value);
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &x = t[kInput];
  Problem p = {.x = Data<void>(x),
               .out = Data<void>(t[kOutput]),
               .b = x.shape[0],
               .s = x.shape[1],
               .d = x.shape[2],
               .batch = x.strides[0],
               .token = x.strides[1],
               .mode = int32_t(args->scalars[kMode].value.i)};
  if (Given(t[kMask])) {
    p.mask = Data<void>(t[kMask]);
    p.mask_row = t[kMask].strides[0];
    p.mask_type = DTypeOf(t[kMask]);
  }
  if (Given(t[kLengths])) {
    p.lengths = Data<void>(t[kLengths]);
    p.length_stride = t[kLengths].strides[0];
    p.wide_lengths = DTypeOf(t[kLengths]) == DType::kI64;
  }
  const int64_t blocks = p.b * ((p.d + kWarp - 1) / kWarp);
  if (blocks == 0) return 0;
  constexpr int64_t kMaxBlocks = int64_t{1} << 30;
  return WithCudaFloat(DTypeOf(x), [&](auto v) {
    Pool<decltype(v)><<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), dim3(kWarp, kTokens), 0,
                        static_cast<cudaStream_t>(args->stream)>>>(p);
    return Launched();
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.pooling.sequence", &Launch, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
