// Embedding lookup, CPU: one copy of a row per id.
//   input  [...]           i32|i64, last dim dense      weight [vocab, hidden]  any dtype, last dim dense
//   output [..., hidden]   dtype of weight, last dim dense
// Workspace: none. Deterministic. An id out of range: kIdOutOfRange, and nothing outside the table is read.
#include <atomic>
#include <cstring>

#include "core/dtype.h"
#include "core/kernel.h"
#include "kernels/launch.h"
#include "kernels/spec.h"
#include "ops/embedding/lookup.h"

namespace {
using namespace lz;
using namespace lz::ops::embedding_lookup;

// Bytes that pay for waking another thread: about 3 us of copying.
constexpr int64_t kGrainBytes = 64 * 1024;

// Element offset of an index in row-major order over the first `axes` axes.
int64_t Offset(const lz_tensor& t, int axes, int64_t index) {
  int64_t offset = 0;
  for (int axis = axes - 1; axis >= 0; --axis) {
    offset += (index % t.shape[axis]) * t.strides[axis];
    index /= t.shape[axis];
  }
  return offset;
}

template <class Id>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor& ids = args->tensors[kInput];
  const lz_tensor& table = args->tensors[kWeight];
  const lz_tensor& out = args->tensors[kOutput];
  const int64_t size = ByteSize(DTypeOf(table)), vocab = table.shape[0];
  const int64_t row_bytes = table.shape[1] * size, stride_bytes = table.strides[0] * size;
  int64_t count = 1;
  for (int axis = 0; axis < ids.ndim; ++axis) count *= ids.shape[axis];
  std::atomic<bool> in_range = true;
  ParallelFor(args, count, kGrainBytes / (row_bytes + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = Data<const Id>(ids)[Offset(ids, ids.ndim, i)];
      if (id < 0 || id >= vocab) {
        in_range.store(false, std::memory_order_relaxed);
        return;
      }
      if (row_bytes == 0) continue;
      std::memcpy(Data<char>(out) + Offset(out, ids.ndim, i) * size, Data<const char>(table) + id * stride_bytes,
                  size_t(row_bytes));
    }
  });
  return in_range.load(std::memory_order_relaxed) ? 0 : kIdOutOfRange;
}

int32_t Launch(const lz_kernel_args* args) {
  return DTypeOf(args->tensors[kInput]) == DType::kI32 ? Run<int32_t>(args) : Run<int64_t>(args);
}

constexpr std::array kFamily = {CpuSpec("cpu.embedding.lookup", &Launch, {.dtypes = kIndices, .accepts = kAcceptsAll})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
