#include "pipeline/dispatch.h"

#include <cstring>
#include <string>

#include "base/arena.h"

namespace lz {
namespace {

constexpr uint64_t kAlign = 64;
uint64_t AlignUp(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

int64_t NumElements(const lz_tensor& t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}
int64_t ItemSize(const lz_tensor& t) { return int64_t{t.dtype.bits} * t.dtype.lanes / 8; }

// Row-major copy of a strided tensor.
void CopyContiguous(const lz_tensor& from, char* to) {
  const int64_t item = ItemSize(from);
  const char* base = static_cast<const char*>(from.data) + from.byte_offset;
  if (NumElements(from) == 0) return;
  const int32_t last = from.ndim - 1;
  const int64_t row = from.ndim ? from.shape[last] : 1;
  const int64_t step = from.ndim ? from.strides[last] * item : item;
  int64_t index[kMaxRank] = {};
  while (true) {
    const char* source = base;
    for (int32_t d = 0; d < last; ++d) source += index[d] * from.strides[d] * item;
    if (step == item) {
      std::memcpy(to, source, size_t(row * item));
      to += row * item;
    } else {
      for (int64_t i = 0; i < row; ++i, to += item) std::memcpy(to, source + i * step, size_t(item));
    }
    int32_t d = last - 1;
    while (d >= 0 && ++index[d] == from.shape[d]) index[d--] = 0;
    if (d < 0) return;
  }
}

lz_kernel_args Arguments(const Request& r, const lz_tensor* tensors, const lz_parallel& threads) {
  lz_kernel_args args{};
  args.size = sizeof(args);
  args.tensors = tensors;
  args.scalars = r.scalars.data();
  args.axes = r.axes();
  args.stream = r.stream;
  args.parallel = r.parallel ? r.parallel : &threads;
  return args;
}

uint64_t KernelBytes(const KernelEntry& kernel, const Request& r, const lz_parallel& threads) {
  if (!kernel.spec.workspace) return 0;
  const lz_kernel_args args = Arguments(r, r.tensors.data(), threads);
  return AlignUp(kernel.spec.workspace(&args));
}

uint64_t CopyBytes(const Plan& plan, const Request& r) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if (plan.contiguous_inputs >> i & 1) bytes += AlignUp(uint64_t(NumElements(r.tensors[i]) * ItemSize(r.tensors[i])));
  }
  return bytes;
}

Status Failed(const Plan& plan, const Request& r, int32_t code) {
  return Status(
      StatusCode::kKernelFailed,
      {.field = std::string(r.op->name()) + ": kernel " + plan.kernel->id,
       .wanted = "0 from its launch",
       .got = std::to_string(code),
       .fix = "check that index arguments lie within their tensors; `layerzero explain` shows other kernels"});
}

}  // namespace

uint64_t WorkspaceBytes(const Plan& plan, const Request& r) {
  static constexpr lz_parallel kNone{nullptr, nullptr, 1};
  return KernelBytes(*plan.kernel, r, r.parallel ? *r.parallel : kNone) + CopyBytes(plan, r);
}

Status Dispatch(const Plan& plan, Request& r, const lz_parallel& threads, bool* fell_back) {
  *fell_back = false;
  const KernelEntry& kernel = *plan.kernel;
  if (kernel.spec.call != CallKind::kNative || !kernel.spec.launch) {
    return Status(StatusCode::kHostKernel, {.field = "kernel " + kernel.id, .wanted = "a call in the host language"});
  }
  const lz_parallel& parallel = r.parallel ? *r.parallel : threads;
  const uint64_t own = kernel.spec.workspace ? KernelBytes(kernel, r, parallel) : 0;
  const uint64_t needed = plan.contiguous_inputs ? own + CopyBytes(plan, r) : own;
  char* workspace = static_cast<char*>(r.workspace);
  if (needed > (workspace ? r.workspace_bytes : 0)) {
    workspace = static_cast<char*>(Arena::OfThisThread().Get(needed));
    if (!workspace) {
      return Status(StatusCode::kKernelFailed, {.field = "workspace",
                                                .wanted = std::to_string(needed) + " bytes",
                                                .got = "none",
                                                .fix = "free memory or choose a kernel that needs less"});
    }
  }

  std::array<lz_tensor, kMaxTensors> tensors;
  const lz_tensor* used = r.tensors.data();
  std::array<std::array<int64_t, kMaxRank>, kMaxTensors> strides;
  if (plan.contiguous_inputs) {
    tensors = r.tensors;
    char* at = workspace + own;
    for (size_t i = 0; i < r.op->num_inputs(); ++i) {
      if (!(plan.contiguous_inputs >> i & 1)) continue;
      lz_tensor& t = tensors[i];
      CopyContiguous(t, at);
      t.data = at;
      t.byte_offset = 0;
      int64_t stride = 1;
      for (int32_t d = t.ndim - 1; d >= 0; --d) {
        strides[i][size_t(d)] = stride;
        stride *= t.shape[d];
      }
      t.strides = strides[i].data();
      at += AlignUp(uint64_t(NumElements(t) * ItemSize(t)));
    }
    used = tensors.data();
  }

  lz_kernel_args args = Arguments(r, used, parallel);
  args.workspace = workspace;
  args.workspace_bytes = own;
  const int32_t code = kernel.spec.launch(&args);
  if (code == 0) [[likely]]
    return {};
  // Data that the kernel found invalid (an index outside its tensor) is the caller's to mend: no fallback hides it.
  if (!plan.fallback || plan.locked || code == LZ_LAUNCH_INVALID_DATA || code == LZ_LAUNCH_INVALID_INDEX) {
    return Failed(plan, r, code);
  }
  *fell_back = true;
  if (plan.fallback->spec.call != CallKind::kNative || !plan.fallback->spec.launch) {
    return Status(StatusCode::kHostKernel,
                  {.field = "kernel " + plan.fallback->id, .wanted = "a call in the host language"});
  }
  lz_kernel_args again = Arguments(r, r.tensors.data(), parallel);
  return plan.fallback->spec.launch(&again) == 0 ? Status() : Failed(plan, r, code);
}

}  // namespace lz
