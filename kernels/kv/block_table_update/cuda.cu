// kv.block_table_update on CUDA: a thread an update, which writes where no later one names the same entry.
//   block_tables [b, max_blocks] i32|i64, any strides     updates [u, 3] i32|i64, any strides, u at most 16384
// Writes the table. Workspace: none. Deterministic. Safe in graph captures. An update outside the table, or of a block
// that the table's dtype does not hold, is left out: the host cannot see it without waiting for the device.
#include "kernels/cuda_types.h"
#include "ops/kv/block_table_update.h"

namespace lz {
namespace {
using namespace lz::ops::kv_block_table_update;

constexpr int kThreads = 128;

struct Problem {
  void* table;
  const void* updates;
  int64_t rows, columns, row_stride, column_stride, update_stride, part_stride, n;
  bool wide, wide_table;
};

// Row and column of update i as one number; -1: it is left out.
__device__ int64_t EntryOf(const Problem& p, int64_t i) {
  const int64_t row = LoadIndex(p.updates, i * p.update_stride, p.wide);
  const int64_t column = LoadIndex(p.updates, i * p.update_stride + p.part_stride, p.wide);
  return row < 0 || row >= p.rows || column < 0 || column >= p.columns ? -1 : row * p.columns + column;
}

__global__ void __launch_bounds__(kThreads) Update(const Problem p) {
  __shared__ int64_t later[kThreads];
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t mine = i < p.n ? EntryOf(p, i) : -1;
  bool last = mine >= 0;
  for (int64_t first = int64_t(blockIdx.x) * kThreads; first < p.n; first += kThreads) {
    __syncthreads();
    later[threadIdx.x] = first + threadIdx.x < p.n ? EntryOf(p, first + threadIdx.x) : -1;
    __syncthreads();
    for (int j = 0; last && j < kThreads; ++j) last = first + j <= i || later[j] != mine;
  }
  if (!last) return;
  const int64_t block = LoadIndex(p.updates, i * p.update_stride + 2 * p.part_stride, p.wide);
  const int64_t at = mine / p.columns * p.row_stride + mine % p.columns * p.column_stride;
  if (p.wide_table) {
    static_cast<int64_t*>(p.table)[at] = block;
  } else if (block == int32_t(block)) {
    static_cast<int32_t*>(p.table)[at] = int32_t(block);
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &table = args->tensors[kBlockTables], &updates = args->tensors[kUpdates];
  const Problem p = {.table = Data<void>(table),
                     .updates = Data<void>(updates),
                     .rows = table.shape[0],
                     .columns = table.shape[1],
                     .row_stride = table.strides[0],
                     .column_stride = table.strides[1],
                     .update_stride = updates.strides[0],
                     .part_stride = updates.strides[1],
                     .n = updates.shape[0],
                     .wide = DTypeOf(updates) == DType::kI64,
                     .wide_table = DTypeOf(table) == DType::kI64};
  if (p.n == 0) return 0;
  Update<<<unsigned((p.n + kThreads - 1) / kThreads), kThreads, 0, static_cast<cudaStream_t>(args->stream)>>>(p);
  return Launched();
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver, {"u", Rel::kLe, 16384}});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "cuda.kv.block_table_update",
     .operation = "kv.block_table_update",
     .platform = Platform::kCuda,
     .dtypes = kIndices,
     .constraints = kConstraints,
     .strides = Strides::kAny,
     .priority = 80,
     .deterministic = true,
     .cuda_graph_safe = true,
     .launch = &Launch},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
