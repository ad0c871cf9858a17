// embedding.lookup on CUDA: a block some of a row; of many rows a thread has several units on their way.
//   input [...]  i32|i64, any strides     weight [vocab, hidden]  any dtype, last dim dense
//   output [..., hidden]  contiguous
// Workspace: none. Deterministic. Safe in graph captures. Source: own. An id outside the table stops the kernel, as
// torch's does: the host cannot see it without waiting for the device.
#include "kernels/cuda_types.h"
#include "kernels/dependent_cuda.h"
#include "kernels/spec.h"
#include "ops/embedding/lookup.h"

namespace lz {
namespace {
using namespace lz::ops::embedding_lookup;

constexpr int kThreads = 128, kBatch = 4;
constexpr int64_t kMany = 1 << 17;  // units of a call that fill the device with kBatch for each thread

struct Problem {
  const void* ids;
  DeviceRows places;
  const void* weight;
  void* out;
  int64_t rows, vocab, units, stride;  // of a row of the table, in units
  int32_t batch;                       // units of a thread
  bool wide_ids;
};

template <class Unit>
__global__ void __launch_bounds__(kThreads) Lookup(const __grid_constant__ Problem p) {
  const int of_block = p.batch * kThreads;
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t id = LoadIndex(p.ids, p.places[row], p.wide_ids);
    if (id < 0 || id >= p.vocab) __trap();
    const Unit* from = static_cast<const Unit*>(p.weight) + id * p.stride;
    Unit* to = static_cast<Unit*>(p.out) + row * p.units;
    for (int64_t first = int64_t(blockIdx.y) * of_block + threadIdx.x; first < p.units;
         first += int64_t(gridDim.y) * of_block) {
      Unit units[kBatch] = {};
#pragma unroll
      for (int h = 0; h < kBatch; ++h) {
        if (h < p.batch && first + h * kThreads < p.units) units[h] = from[first + h * kThreads];
      }
#pragma unroll
      for (int h = 0; h < kBatch; ++h) {
        if (h < p.batch && first + h * kThreads < p.units) to[first + h * kThreads] = units[h];
      }
    }
  }
}

template <class Unit>
int32_t Run(Problem p, int64_t row_bytes, int64_t stride_bytes, void* stream) {
  p.units = row_bytes / int64_t(sizeof(Unit));
  p.stride = stride_bytes / int64_t(sizeof(Unit));
  constexpr int64_t kMaxRows = int64_t{1} << 30;
  p.batch = p.rows * p.units < kMany ? 1 : kBatch;
  const int64_t of_block = int64_t(p.batch) * kThreads, chunks = (p.units + of_block - 1) / of_block;
  const dim3 grid(unsigned(p.rows < kMaxRows ? p.rows : kMaxRows), unsigned(chunks < kMaxGridY ? chunks : kMaxGridY));
  return LaunchDependent(&Lookup<Unit>, {.grid = grid, .block = dim3(kThreads), .stream = stream}, p);
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &ids = args->tensors[kInput], &weight = args->tensors[kWeight], &out = args->tensors[kOutput];
  const int64_t size = ByteSize(DTypeOf(weight)), row = weight.shape[1] * size, stride = weight.strides[0] * size;
  const Problem p = {.ids = Data<void>(ids),
                     .places = ElementsOf(ids),
                     .weight = Data<void>(weight),
                     .out = Data<void>(out),
                     .rows = NumRows(out),
                     .vocab = weight.shape[0],
                     .wide_ids = DTypeOf(ids) == DType::kI64};
  if (p.rows == 0 || row == 0) return 0;
  if (Aligned(p.weight, p.out) && row % 16 == 0 && stride % 16 == 0) return Run<uint4>(p, row, stride, args->stream);
  switch (size) {
    case 1: return Run<uint8_t>(p, row, stride, args->stream);
    case 2: return Run<uint16_t>(p, row, stride, args->stream);
    case 4: return Run<uint32_t>(p, row, stride, args->stream);
    default: return Run<uint64_t>(p, row, stride, args->stream);
  }
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.embedding.lookup", &Launch,
             {.dtypes = kIndices, .constraints = kConstraints, .accepts = kAcceptsAll, .priority = kNotYetMeasured})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
