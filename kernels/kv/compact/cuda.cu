// kv.compact on CUDA: keys and values by one launch; some blocks of threads copy a block of the cache.
//   key_cache [blocks, block_size, h_kv, d_k], value_cache [blocks, block_size, h_kv, d_v]  any dtype, contiguous
//   moves [m, 2]  i32|i64, contiguous
// Writes the caches. Workspace: none. Deterministic. Safe in graph captures. A pair that names a block beyond the cache
// is left out, and nobody looks for targets that other pairs name: to see them, the host
// would have to wait for the device.
#include "kernels/cuda_types.h"
#include "kernels/spec.h"
#include "ops/kv/compact.h"

namespace lz {
namespace {
using namespace lz::ops::kv_compact;

constexpr int kThreads = 256;
constexpr int64_t kMostParts = 64;  // blocks of threads for a block of the cache

struct Problem {
  char* cache[2];
  int64_t bytes[2];  // of a block
  const void* moves;
  int64_t blocks, n;
  bool wide_moves;
};

template <class Unit>
__global__ void __launch_bounds__(kThreads) Compact(const Problem p) {
  char* const cache = p.cache[blockIdx.z];
  const int64_t bytes = p.bytes[blockIdx.z], units = bytes / int64_t(sizeof(Unit));
  for (int64_t pair = blockIdx.x; pair < p.n; pair += gridDim.x) {
    const int64_t from = LoadIndex(p.moves, 2 * pair, p.wide_moves),
                  to = LoadIndex(p.moves, 2 * pair + 1, p.wide_moves);
    if (from < 0 || from >= p.blocks || to < 0 || to >= p.blocks) continue;
    const Unit* source = reinterpret_cast<const Unit*>(cache + from * bytes);
    Unit* target = reinterpret_cast<Unit*>(cache + to * bytes);
    for (int64_t i = int64_t(blockIdx.y) * kThreads + threadIdx.x; i < units; i += int64_t(gridDim.y) * kThreads) {
      target[i] = source[i];
    }
  }
}

template <class Unit>
int32_t Run(const Problem& p, void* stream) {
  const int64_t most = p.bytes[0] > p.bytes[1] ? p.bytes[0] : p.bytes[1];
  const int64_t parts = (most / int64_t(sizeof(Unit)) + kThreads - 1) / kThreads;
  constexpr int64_t kMaxBlocks = int64_t{1} << 30;
  const dim3 grid(unsigned(p.n < kMaxBlocks ? p.n : kMaxBlocks), unsigned(parts < kMostParts ? parts : kMostParts), 2);
  Compact<Unit><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& moves = args->tensors[kMoves];
  Problem p = {.moves = Data<void>(moves),
               .blocks = args->tensors[kKeyCache].shape[0],
               .n = moves.shape[0],
               .wide_moves = DTypeOf(moves) == DType::kI64};
  for (int i = 0; i < 2; ++i) {
    const lz_tensor& t = args->tensors[i == 0 ? kKeyCache : kValueCache];
    p.cache[i] = Data<char>(t);
    p.bytes[i] = t.shape[1] * t.shape[2] * t.shape[3] * ByteSize(DTypeOf(t));
  }
  if (p.n == 0 || (p.bytes[0] == 0 && p.bytes[1] == 0)) return 0;
  const auto fits = [&p](int64_t unit) {
    const auto at = reinterpret_cast<uintptr_t>(p.cache[0]) | reinterpret_cast<uintptr_t>(p.cache[1]);
    return (int64_t(at % uintptr_t(unit)) | p.bytes[0] % unit | p.bytes[1] % unit) == 0;
  };
  if (fits(16)) return Run<uint4>(p, args->stream);
  return fits(4) ? Run<uint32_t>(p, args->stream) : Run<uint8_t>(p, args->stream);
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.kv.compact", &Launch,
             {.dtypes = ops::kv::kCacheDTypes, .constraints = kConstraints, .strides = Strides::kContiguous})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
