// kv.page_table on CUDA, one launch: some blocks for each row of the table; the first one of all also makes the offsets
// of queries.
//   kv_indptr [b + 1], kv_indices [num_indices], kv_last_page_len [b], qo_indptr [b + 1]  i32|i64, any strides
//   block_tables [b + 1, num_indices], kv_lens [b + 1], qo_offsets [b + 2]  i32
// Workspace: none. Deterministic. Safe in graph captures. Nothing is read from the device.
#include "kernels/cuda_types.h"
#include "kernels/spec.h"
#include "ops/kv/page_table.h"

namespace lz {
namespace {
using namespace lz::ops::kv_page_table;

constexpr int kThreads = 256, kColumns = 2048;  // of a block

struct Indices {
  const void* data = nullptr;
  int64_t stride = 0;
  bool wide = false;
#ifdef __CUDACC__
  __device__ int64_t operator[](int64_t i) const { return LoadIndex(data, i * stride, wide); }
#endif
};
Indices IndicesOf(const lz_tensor& t) {
  if (!Given(t)) return {};
  return {Data<void>(t), t.strides[0], DTypeOf(t) == DType::kI64};
}
struct Problem {
  Indices indptr, pages, last, queries;
  int64_t listed, b, size, most, total;  // most: the last page of the cache
  int32_t *table, *lens, *offsets;
  int64_t table_row, table_column, lens_stride, offsets_stride;
};

__device__ int64_t Limited(int64_t v, int64_t most) { return v < 0 ? 0 : v > most ? most : v; }

// The largest value of the threads up to this one, for each thread. A barrier of the block.
__device__ int32_t MostSoFar(int32_t v) {
  __shared__ int32_t of_warp[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int step = 1; step < kWarp; step *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, v, unsigned(step));
    v = lane >= step && other > v ? other : v;
  }
  __syncthreads();  // what the call before left has been read
  if (lane == kWarp - 1) of_warp[warp] = v;
  __syncthreads();
  for (int w = 0; w < warp; ++w) v = of_warp[w] > v ? of_warp[w] : v;
  return v;
}

__device__ void WriteOffsets(const Problem& p) {
  __shared__ int32_t before;
  if (threadIdx.x == 0) before = 0, p.offsets[(p.b + 1) * p.offsets_stride] = int32_t(p.total);
  for (int64_t first = 0; first <= p.b; first += kThreads) {
    const int64_t s = first + threadIdx.x;
    int32_t most = MostSoFar(s <= p.b ? int32_t(Limited(p.queries[s], p.total)) : 0);
    most = before > most ? before : most;
    if (s <= p.b) p.offsets[s * p.offsets_stride] = most;
    __syncthreads();  // `before` has been read
    if (threadIdx.x == kThreads - 1) before = most;
  }
}

__global__ void __launch_bounds__(kThreads) PageTable(const Problem p) {
  const int64_t tiles = (p.listed + kColumns - 1) / kColumns;
  const int64_t s = tiles > 0 ? blockIdx.x / tiles : blockIdx.x, tile = tiles > 0 ? blockIdx.x % tiles : 0;
  const int64_t first = s < p.b ? Limited(p.indptr[s], p.listed) : 0;
  const int64_t end = s < p.b ? Limited(p.indptr[s + 1], p.listed) : 0, n = end > first ? end - first : 0;
  if (tile == 0 && threadIdx.x == 0) {
    const int64_t last = n > 0 ? p.last[s] : 0, length = n > 0 ? (n - 1) * p.size + (last < p.size ? last : p.size) : 0;
    p.lens[s * p.lens_stride] = length > 0 ? int32_t(length) : 0;
  }
  int32_t* const row = p.table + s * p.table_row;
  for (int64_t i = tile * kColumns + threadIdx.x; i < p.listed && i < (tile + 1) * kColumns; i += kThreads) {
    row[i * p.table_column] = i < n ? int32_t(Limited(p.pages[first + i], p.most)) : 0;
  }
  if (blockIdx.x == 0 && p.offsets) WriteOffsets(p);
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &table = t[kBlockTables], &lens = t[kKVLens], &offsets = t[kQOOffsets];
  const int64_t pages = args->scalars[kNumPages].value.i;
  Problem p = {.indptr = IndicesOf(t[kKVIndptr]),
               .pages = IndicesOf(t[kKVIndices]),
               .last = IndicesOf(t[kKVLastPageLen]),
               .queries = IndicesOf(t[kQOIndptr]),
               .listed = table.shape[1],
               .b = table.shape[0] - 1,
               .size = args->scalars[kPageSize].value.i,
               .most = pages > 0 ? pages - 1 : 0,
               .total = args->scalars[kTotalQ].value.i,
               .table = Data<int32_t>(table),
               .lens = Data<int32_t>(lens),
               .table_row = table.strides[0],
               .table_column = table.strides[1],
               .lens_stride = lens.strides[0]};
  if (Given(t[kQOIndptr])) p.offsets = Data<int32_t>(offsets), p.offsets_stride = offsets.strides[0];
  const int64_t tiles = (p.listed + kColumns - 1) / kColumns, blocks = (p.b + 1) * (tiles > 0 ? tiles : 1);
  if (blocks > 0x7fffffff) return LZ_LAUNCH_REFUSED;
  PageTable<<<unsigned(blocks), kThreads, 0, static_cast<cudaStream_t>(args->stream)>>>(p);
  return Launched();
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.kv.page_table", &Launch,
             {.dtypes = kIndices, .constraints = kConstraints, .accepts = kAcceptsAll, .strides = Strides::kAny})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
