// kv.block_table_update on CUDA: a thread an update, which writes where no later one names the same entry.
//   block_tables [b, max_blocks] i32|i64, any strides     updates [u, 3] i32|i64, any strides, u at most 16384
// Writes the table. Workspace: none. Deterministic. Safe in graph captures. An update outside the table, or of a block
// that the table's dtype does not hold, is left out: the host cannot see it without waiting for the device.
#include "kernels/cuda_types.h"
#include "kernels/spec.h"
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

struct Entry {
  int64_t row, column;
  bool inside;
};
__device__ Entry EntryOf(const Problem& p, int64_t i) {
  const int64_t row = LoadIndex(p.updates, i * p.update_stride, p.wide);
  const int64_t column = LoadIndex(p.updates, i * p.update_stride + p.part_stride, p.wide);
  return {row, column, row >= 0 && row < p.rows && column >= 0 && column < p.columns};
}
// Row and column as one number; -1: it is left out.
__device__ int64_t KeyOf(const Problem& p, const Entry& e) { return e.inside ? e.row * p.columns + e.column : -1; }

__global__ void __launch_bounds__(kThreads) Update(const Problem p) {
  __shared__ int64_t later[kThreads];
  const int64_t begin = int64_t(blockIdx.x) * kThreads, i = begin + threadIdx.x;
  const Entry entry = i < p.n ? EntryOf(p, i) : Entry{};
  const int64_t mine = KeyOf(p, entry),
                block = i < p.n ? LoadIndex(p.updates, i * p.update_stride + 2 * p.part_stride, p.wide) : 0;
  bool superseded = !entry.inside;
  for (int64_t first = begin; first < p.n; first += kThreads) {
    const int64_t at = first + threadIdx.x;
    if (first > begin) __syncthreads();  // the keys before have been read
    later[threadIdx.x] = first == begin ? mine : at < p.n ? KeyOf(p, EntryOf(p, at)) : -1;
    __syncthreads();
    const int count = p.n - first < kThreads ? int(p.n - first) : kThreads;
#pragma unroll 8
    for (int j = 0; j < count; ++j) superseded |= later[j] == mine && first + j > i;
  }
  if (superseded) return;
  const int64_t to = entry.row * p.row_stride + entry.column * p.column_stride;
  if (p.wide_table) {
    static_cast<int64_t*>(p.table)[to] = block;
  } else if (block == int32_t(block)) {
    static_cast<int32_t*>(p.table)[to] = int32_t(block);
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
constexpr std::array kFamily = {CudaSpec("cuda.kv.block_table_update", &Launch,
                                         {.dtypes = kIndices, .constraints = kConstraints, .strides = Strides::kAny})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
