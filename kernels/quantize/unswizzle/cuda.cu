// quantize.unswizzle on CUDA: a thread for 4 blocks of one row.
//   scale [..., size]  bytes, last dim dense     output [..., rows, columns]  contiguous
// Workspace: none. Deterministic. Safe in graph captures. Source: own; the order is that of ops/common/swizzle.h.
#include "kernels/cuda.h"
#include "kernels/spec.h"
#include "ops/quantize/unswizzle.h"

namespace lz {
namespace {
using namespace lz::ops::quantize_unswizzle;

constexpr int kThreads = 256;

struct Problem {
  const uint8_t* x;
  uint8_t* out;
  DeviceRows matrices;
  int64_t rows, r, c;  // rows of all matrices
  bool wide_in, wide_out;
};

__global__ void __launch_bounds__(kThreads) Unswizzle(const Problem p) {
  const int64_t words = (p.c + 3) / 4, count = p.rows * words;
  for (int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x; at < count; at += int64_t(gridDim.x) * kThreads) {
    const int64_t row = at / words, word = at % words, r = row % p.r;
    const uint8_t* x = p.x + p.matrices[row / p.r] + (r / 128 * words + word) * 512 + r % 32 * 16 + r % 128 / 32 * 4;
    uint8_t* out = p.out + row * p.c + word * 4;
    if (p.wide_in && p.wide_out) {
      *reinterpret_cast<uint32_t*>(out) = *reinterpret_cast<const uint32_t*>(x);
    } else {
      for (int j = 0; j < 4 && word * 4 + j < p.c; ++j) out[j] = x[j];
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kScale], &out = args->tensors[kOutput];
  Problem p = {.x = Data<const uint8_t>(x),
               .out = Data<uint8_t>(out),
               .matrices = DeviceRows(x),
               .rows = NumRows(out),
               .r = out.shape[out.ndim - 2],
               .c = out.shape[out.ndim - 1]};
  p.wide_in = reinterpret_cast<uintptr_t>(p.x) % 4 == 0 && p.matrices.Aligned(4);
  p.wide_out = reinterpret_cast<uintptr_t>(p.out) % 4 == 0 && p.c % 4 == 0;
  const int64_t count = p.rows * ((p.c + 3) / 4);
  if (count == 0) return 0;
  constexpr int64_t kMaxBlocks = 1 << 20;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  Unswizzle<<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0,
              static_cast<cudaStream_t>(args->stream)>>>(p);
  return Launched();
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.quantize.unswizzle", &Launch,
             {.dtypes = ops::kScaleBytes, .constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
