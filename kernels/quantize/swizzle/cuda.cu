// quantize.swizzle on CUDA: a thread for 4 bytes of the result, which are 4 blocks of one row.
//   scale [..., r, c]  bytes, last dim dense     output [..., size]  contiguous
// Workspace: none. Deterministic. Safe in graph captures. Source: own; the order is that of ops/common/swizzle.h.
#include "kernels/cuda.h"
#include "kernels/spec.h"
#include "ops/quantize/swizzle.h"

namespace lz {
namespace {
using namespace lz::ops::quantize_swizzle;

constexpr int kThreads = 256;

struct Problem {
  const uint8_t* x;
  uint32_t* out;
  DeviceRows rows;
  int64_t matrices, r, c, words;  // words of a matrix
  bool wide;                      // 4 bytes of a row are a word
};

__global__ void __launch_bounds__(kThreads) Swizzle(const Problem p) {
  const int64_t count = p.matrices * p.words, column_tiles = (p.c + 3) / 4;
  for (int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x; at < count; at += int64_t(gridDim.x) * kThreads) {
    const int64_t matrix = at / p.words, word = at % p.words, tile = word / 128;
    const int64_t row = tile / column_tiles * 128 + word % 4 * 32 + word % 128 / 4, column = tile % column_tiles * 4;
    uint32_t bytes = 0;
    if (row < p.r) {
      const uint8_t* x = p.x + p.rows[matrix * p.r + row] + column;
      if (p.wide) {
        bytes = *reinterpret_cast<const uint32_t*>(x);
      } else {
        for (int j = 0; j < 4 && column + j < p.c; ++j) bytes |= uint32_t(x[j]) << 8 * j;
      }
    }
    p.out[at] = bytes;
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kScale], &out = args->tensors[kOutput];
  Problem p = {.x = Data<const uint8_t>(x),
               .out = Data<uint32_t>(out),
               .rows = DeviceRows(x),
               .matrices = NumRows(out),
               .r = x.shape[x.ndim - 2],
               .c = x.shape[x.ndim - 1],
               .words = out.shape[out.ndim - 1] / 4};
  p.wide = reinterpret_cast<uintptr_t>(p.x) % 4 == 0 && p.c % 4 == 0 && p.rows.Aligned(4);
  const int64_t count = p.matrices * p.words;
  if (count == 0) return 0;
  constexpr int64_t kMaxBlocks = 1 << 20;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  Swizzle<<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0,
            static_cast<cudaStream_t>(args->stream)>>>(p);
  return Launched();
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.quantize.swizzle", &Launch,
             {.dtypes = ops::kScaleBytes, .constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
