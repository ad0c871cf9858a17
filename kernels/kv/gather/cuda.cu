// kv.gather on CUDA: 128 threads and more take a row, fewer where rows are shorter.
//   cache [blocks, block_size, h_kv, d]  any dtype, last dim dense     slots [n] i32|i64     scale [] [1] [h_kv] f32
//   output [n, h_kv, d]                  the cache's dtype, or f64|f32|f16|bf16
// Workspace: none. Deterministic. Safe in graph captures. The row of a slot outside the cache is zeros: to see it,
// the host would have to wait for the device.
#include "kernels/kv/rows_cuda.h"
#include "kernels/spec.h"
#include "ops/kv/gather.h"

namespace lz {
namespace {
using namespace lz::ops::kv_gather;

// Copies of rows of 16-byte units from slots that one stride separates, as in a contiguous cache. What the general
// kernel knows besides comes from several lines of parameters, whose loads a call of few rows waits for.
struct DenseRows {
  const uint4* cache;
  uint4* out;
  const void* slots;
  int64_t slots_stride, slot, count, n;  // slot: units from one slot to the next; count: of slots
  int32_t width;
};
constexpr int kDenseThreads = 128;

template <class Index>
__global__ void __launch_bounds__(kDenseThreads) GatherDense(const DenseRows a) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.n) return;
  const int64_t slot = static_cast<const Index*>(a.slots)[row * a.slots_stride];
  const bool there = slot >= 0 && slot < a.count;
  const uint4* from = a.cache + (there ? slot : 0) * a.slot;
  uint4* to = a.out + row * a.width;
  for (int i = int(threadIdx.x); i < a.width; i += int(blockDim.x)) to[i] = there ? from[i] : uint4{};
}

// True if the call is one of these.
bool ToDense(kv::PagedSide s, const lz_tensor& slots, DenseRows* rows) {
  if (s.scale || s.rows_type != s.cache_type || s.heads != 1 || s.block_size != 0 || !kv::ToWide(&s)) return false;
  if (s.row != s.width && slots.shape[0] > 1) return false;
  *rows = {.cache = static_cast<const uint4*>(s.cache),
           .out = static_cast<uint4*>(const_cast<void*>(s.rows)),
           .slots = Data<void>(slots),
           .slots_stride = slots.strides[0],
           .slot = s.slot,
           .count = s.slots,
           .n = slots.shape[0],
           .width = s.width};
  return true;
}

int32_t LaunchDense(const DenseRows& a, bool wide_slots, void* stream) {
  if (a.n == 0 || a.width == 0) return LZ_LAUNCH_DONE;
  const int lanes = a.width < kDenseThreads ? (a.width + kWarp - 1) / kWarp * kWarp : kDenseThreads;
  const int at_once = kDenseThreads / lanes;
  const dim3 threads{unsigned(lanes), unsigned(at_once)};
  const auto blocks = unsigned((a.n + at_once - 1) / at_once);
  if (wide_slots) {
    GatherDense<int64_t><<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  } else {
    GatherDense<int32_t><<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  }
  return Launched();
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  kv::PagedSides sides = {};
  sides.side[0] = kv::SideOf(t[kOutput], t[kCache], &t[kScale]);
  DenseRows dense;
  if (t[kSlots].shape[0] <= 0x7fffffff && ToDense(sides.side[0], t[kSlots], &dense)) {
    return LaunchDense(dense, DTypeOf(t[kSlots]) == DType::kI64, args->stream);
  }
  return kv::LaunchPaged<false>(sides, 1, t[kSlots], args->stream);
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {CudaSpec(
    "cuda.kv.gather", &Launch, {.dtypes = ops::kv::kCacheDTypes, .constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
