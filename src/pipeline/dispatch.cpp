#include "pipeline/dispatch.h"

#include <string>

#include "base/arena.h"
#include "pipeline/dispatch_check.h"
#include "platform/cuda_driver.h"

namespace lz {
namespace {

constexpr uint64_t kSmall = 1 << 20;                // bytes that no headroom is worth a question
constexpr int32_t kDeviceCpu = 1, kDeviceCuda = 2;  // lz_device.type
constexpr int32_t kNoDevice = -2;                   // a launch's answer where its device could not be made current

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
  return AlignWorkspace(kernel.spec.workspace(&args));
}

Status Failed(const KernelEntry& kernel, const Request& r, int32_t code) {
  return Status(
      StatusCode::kKernelFailed,
      {.field = std::string(r.op->name()) + ": kernel " + kernel.id,
       .wanted = "0 from its launch",
       .got = std::to_string(code),
       .fix = "check that index arguments lie within their tensors; `layerzero explain` shows other kernels"});
}

Status HostKernel(const KernelEntry& kernel) {
  return Status(StatusCode::kHostKernel, {.field = "kernel " + kernel.id, .wanted = "a call in the host language"});
}

Status NoMemory(const KernelEntry& kernel, uint64_t bytes, const char* got, const char* fix) {
  return Status(StatusCode::kKernelFailed, {.field = "kernel " + kernel.id + ": workspace",
                                            .wanted = std::to_string(bytes) + " bytes",
                                            .got = got,
                                            .fix = fix});
}

// The caller's workspace if it is large enough, else this thread's.
Result<char*> Workspace(const KernelEntry& kernel, const Request& r, uint64_t bytes,
                        const DispatchResources& resources) {
  if (bytes <= (r.workspace ? r.workspace_bytes : 0)) return static_cast<char*>(r.workspace);
  if (r.where.type != kDeviceCpu) {  // device memory is the caller's, stream by stream
    return NoMemory(kernel, bytes, "none on the tensors' device",
                    "pass workspace of as many bytes, allocated for the request's stream");
  }
  Arena& arena = Arena::OfThisThread();
  if (bytes > arena.size() + kSmall && resources.may_take) {
    LZ_RETURN_IF_ERROR(resources.may_take(resources.self, r, bytes - arena.size()));
  }
  if (void* memory = arena.Get(bytes)) return static_cast<char*>(memory);
  return NoMemory(kernel, bytes, "none", "free memory or choose a kernel that needs less");
}

// The tensors' device is current around the launch.
int32_t LaunchOnDevice(const KernelEntry& kernel, const Request& r, const lz_kernel_args& args) {
  if (r.where.type != kDeviceCuda) return kernel.spec.launch(&args);
  const CudaDeviceGuard guard(r.where.id);
  return guard.ok() ? kernel.spec.launch(&args) : kNoDevice;
}

// One kernel with its transforms. `*code`: what the launch returned; -1: it was not reached.
Status Launch(const Plan& plan, const KernelEntry& kernel, const Transforms& transforms, Request& r,
              const DispatchResources& resources, int32_t* code) {
  *code = -1;
  if (kernel.spec.call != CallKind::kNative || !kernel.spec.launch) return HostKernel(kernel);
  const lz_parallel& parallel = r.parallel ? *r.parallel : resources.threads;
  const uint64_t own = KernelBytes(kernel, r, parallel);
  const uint64_t needed = own + (transforms.any() ? TransformBytes(transforms, r) : 0) + CheckBytes(plan);
  char* workspace = static_cast<char*>(r.workspace);
  if (needed > 0) {
    auto memory = Workspace(kernel, r, needed, resources);
    if (!memory.ok()) return memory.TakeStatus();
    workspace = *memory;
  }
  TransformedTensors transformed;
  const lz_tensor* tensors = r.tensors.data();
  if (transforms.any()) {
    transformed.Enter(transforms, r, workspace + own + CheckBytes(plan));
    tensors = transformed.tensors();
  }
  lz_kernel_args args = Arguments(r, tensors, parallel);
  args.flags = plan.strict ? LZ_KERNEL_STRICT : 0;
  args.workspace = workspace;
  args.workspace_bytes = own;
  if (plan.checked) PlantGuard(workspace + own);
  *code = LaunchOnDevice(kernel, r, args);
  if (*code != LZ_LAUNCH_DONE) [[unlikely]]
    return Failed(kernel, r, *code);
  if (transforms.outputs) transformed.Leave();
  return plan.checked ? CheckDispatch(plan, kernel, r, args, workspace + own) : Status();
}

}  // namespace

uint64_t WorkspaceBytes(const KernelEntry& kernel, const Transforms& transforms, const Request& r) {
  static constexpr lz_parallel kNone{nullptr, nullptr, 1};
  return KernelBytes(kernel, r, r.parallel ? *r.parallel : kNone) + TransformBytes(transforms, r);
}
uint64_t WorkspaceBytes(const Plan& plan, const Request& r) {
  return WorkspaceBytes(*plan.kernel, plan.transforms, r) + CheckBytes(plan);
}

Status Dispatch(const Plan& plan, Request& r, const DispatchResources& resources) {
  r.fell_back = false;
  int32_t code;
  Status status = Launch(plan, *plan.kernel, plan.transforms, r, resources, &code);
  if (status.ok()) [[likely]]
    return status;
  // Data that the kernel found invalid (an index outside its tensor) is the caller's to mend: no fallback hides it.
  // Nor does one hide what debug mode has found.
  const bool failed = code != LZ_LAUNCH_DONE && code != LZ_LAUNCH_INVALID_DATA && code != LZ_LAUNCH_INVALID_INDEX;
  if (!failed || status.code() != StatusCode::kKernelFailed || !plan.fallback) return status;
  Status answered = DispatchFallback(plan, r, resources);
  return answered.ok() || answered.code() == StatusCode::kHostKernel ? std::move(answered) : std::move(status);
}

Status DispatchFallback(const Plan& plan, Request& r, const DispatchResources& resources) {
  r.fell_back = true;
  int32_t code;
  return Launch(plan, *plan.fallback, plan.fallback_transforms, r, resources, &code);
}

}  // namespace lz
