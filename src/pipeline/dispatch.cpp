#include "pipeline/dispatch.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/arena.h"
#include "pipeline/dispatch_check.h"
#include "pipeline/dispatch_observer.h"
#include "pipeline/request_memory.h"
#include "platform/cuda_driver.h"

namespace lz {
namespace {

constexpr uint64_t kSmall = 1 << 20;                // bytes below which no headroom is checked
constexpr int32_t kDeviceCpu = 1, kDeviceCuda = 2;  // lz_device.type
constexpr int32_t kCudaErrors = 1000;               // a launch returns an error of CUDA's runtime above this number

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

// The error for a launch that did not succeed.
Status Failed(const KernelEntry& kernel, const Request& r, int32_t code) {
  const std::string name = std::string(r.op->name()) + ": kernel " + kernel.id;
  if (code == LZ_LAUNCH_REFUSED) {
    return Status(StatusCode::kKernelRefused, {.field = name,
                                               .wanted = "a call that it serves",
                                               .got = "a refusal, before anything was written",
                                               .fix = "`layerzero explain` shows other kernels"});
  }
  const bool of_cuda = r.where.type == kDeviceCuda;  // CudaCode of kernels/cuda.h
  if (of_cuda && IsLostContext(code - kCudaErrors)) {
    return Status(StatusCode::kContextLost, {.field = name,
                                             .wanted = "a device that works",
                                             .got = "CUDA error " + std::to_string(code - kCudaErrors),
                                             .fix = "start the process again: no kernel can use this device any more"});
  }
  const bool no_memory = of_cuda && code == kCudaErrors + kCudaOutOfMemory;
  ErrorParts text = {
      .field = name,
      .wanted = "a launch without an error",
      .got = "code " + std::to_string(code),
      .fix = "check that index arguments are within their tensors; `layerzero explain` shows other kernels"};
  if (code == LZ_LAUNCH_INVALID_INDEX) {
    text.wanted = "indices within their tensors";
    text.got = "others";
  } else if (code == LZ_LAUNCH_INVALID_DATA) {
    text.wanted = "valid values in its tensors";
    text.got = "an invalid one (code " + std::to_string(code) + ")";
    text.fix = "check index arguments, lengths, offsets, temperatures and the numbers of rows";
  }
  return WithWrittenInputs(kernel, r,
                           Status(no_memory ? StatusCode::kOutOfMemory : StatusCode::kKernelFailed, std::move(text)));
}

// The error before a launch: nothing is written.
Status NoMemory(StatusCode code, const KernelEntry& kernel, uint64_t bytes, const char* got, const char* fix) {
  return Status(code, {.field = "kernel " + kernel.id + ": workspace",
                       .wanted = std::to_string(bytes) + " bytes",
                       .got = got,
                       .fix = fix});
}
Status NoDevice(const KernelEntry& kernel, const Request& r) {
  return Status(StatusCode::kKernelRefused,
                {.field = "kernel " + kernel.id,
                 .wanted = "CUDA device " + std::to_string(r.where.id) + " as the current one",
                 .got = "an error of the driver",
                 .fix = "see `layerzero doctor`"});
}

// Returns the caller's workspace if it is large enough, otherwise this thread's.
Result<char*> Workspace(const KernelEntry& kernel, const Request& r, uint64_t bytes,
                        const DispatchResources& resources) {
  if (bytes <= (r.workspace ? r.workspace_bytes : 0)) return static_cast<char*>(r.workspace);
  if (r.where.type != kDeviceCpu) {  // the caller owns device memory, stream by stream
    return NoMemory(StatusCode::kKernelRefused, kernel, bytes, "none on the tensors' device",
                    "pass a workspace of this size, allocated for the request's stream");
  }
  Arena& arena = Arena::OfThisThread();
  if (bytes > arena.size() + kSmall && resources.may_take) {
    LZ_RETURN_IF_ERROR(resources.may_take(resources.self, r, bytes - arena.size()));
  }
  if (void* memory = arena.Get(bytes)) return static_cast<char*>(memory);
  return NoMemory(StatusCode::kOutOfMemory, kernel, bytes, "none", "free memory or choose a kernel that needs less");
}

// Nothing is written before the launch.
Status NotLaunched(Request& r, Status status) {
  const bool no_memory = status.code() == StatusCode::kOutOfMemory;
  if (no_memory || status.code() == StatusCode::kKernelRefused) {
    r.outcome = no_memory ? Outcome::kOutOfMemory : Outcome::kRefused;
  }
  return status;
}

// Data that a kernel found invalid (an index outside its tensor) is for the caller to correct: no other kernel hides
// it, nor what debug mode found.
Status LaunchFailed(const KernelEntry& kernel, Request& r, int32_t code) {
  Status status = Failed(kernel, r, code);
  const bool invalid = code == LZ_LAUNCH_INVALID_DATA || code == LZ_LAUNCH_INVALID_INDEX;
  if (!invalid) r.outcome = OutcomeOf(kernel, r, status);
  return status;
}

// Runs the kernel with its transforms. The tensors' device is current around the launch.
Status Launch(const Plan& plan, Request& r, const DispatchResources& resources) {
  const KernelEntry& kernel = *plan.kernel;
  const Transforms& transforms = plan.transforms;
  if (kernel.spec.call != CallKind::kNative || !kernel.spec.launch) return HostKernelError(kernel);
  const lz_parallel& parallel = r.parallel ? *r.parallel : resources.threads;
  const uint64_t own = KernelBytes(kernel, r, parallel);
  const uint64_t needed = own + (transforms.any() ? TransformBytes(transforms, r) : 0) + CheckBytes(plan, r);
  char* workspace = static_cast<char*>(r.workspace);
  if (needed > 0) {
    auto memory = Workspace(kernel, r, needed, resources);
    if (!memory.ok()) return NotLaunched(r, memory.TakeStatus());
    workspace = *memory;
  }
  TransformedTensors transformed;
  const lz_tensor* tensors = r.tensors.data();
  if (transforms.any()) {
    LZ_RETURN_IF_ERROR(transformed.Enter(transforms, r, workspace + own + CheckBytes(plan, r)));
    tensors = transformed.tensors();
  }
  lz_kernel_args args = Arguments(r, tensors, parallel);
  args.flags = plan.strict ? LZ_KERNEL_STRICT : 0;
  args.workspace = workspace;
  args.workspace_bytes = own;
  const bool checked = IsChecked(plan, r);
  if (checked) PlantGuard(workspace + own);
  std::optional<CudaDeviceGuard> guard;
  if (r.where.type == kDeviceCuda && !guard.emplace(r.where.id).ok()) return NotLaunched(r, NoDevice(kernel, r));
  const int32_t code = kernel.spec.launch(&args);
  if (code != LZ_LAUNCH_DONE) [[unlikely]]
    return LaunchFailed(kernel, r, code);
  if (transforms.outputs) transformed.Leave();
  return checked ? CheckDispatch(plan, kernel, r, args, workspace + own) : Status();
}

}  // namespace

uint64_t WorkspaceBytes(const KernelEntry& kernel, const Transforms& transforms, const Request& r) {
  static constexpr lz_parallel kNone{nullptr, nullptr, 1};
  return KernelBytes(kernel, r, r.parallel ? *r.parallel : kNone) + TransformBytes(transforms, r);
}
uint64_t WorkspaceBytes(const Plan& plan, const Request& r) {
  return WorkspaceBytes(*plan.kernel, plan.transforms, r) + CheckBytes(plan, r);
}

uint64_t WorkspaceBytes(const Candidate& c, const Request& r) {
  if (c.kernel->spec.call == CallKind::kNative) return WorkspaceBytes(*c.kernel, c.transforms, r);
  const auto& bytes = c.kernel->workspace_bytes;
  return bytes ? uint64_t(std::max<int64_t>(0, bytes->Evaluate(r.variables.data()))) : 0;
}

std::string WrittenInputs(const KernelEntry& kernel, const Request& r) {
  std::string names;
  const size_t inputs = r.op->num_inputs();
  for (size_t i = 0; i < inputs; ++i) {
    const lz_tensor& t = r.tensors[i];
    if (t.ndim < 0) continue;
    bool written = r.op->mutated_inputs() >> i & 1;
    const bool native = kernel.spec.call == CallKind::kNative;  // results of host kernels are copied into
                                                                // outputs afterwards
    for (size_t o = 0; native && !written && o < r.op->num_outputs(); ++o) {
      const lz_tensor& out = r.tensors[inputs + o];
      written = out.ndim >= 0 && out.data && SharesMemory(out, t);
    }
    if (written) names += (names.empty() ? "" : ", ") + std::string(r.op->input(i).name);
  }
  return names;
}

Status WithWrittenInputs(const KernelEntry& kernel, const Request& r, Status status) {
  const std::string names = WrittenInputs(kernel, r);
  if (names.empty()) return status;
  ErrorParts parts = status.parts();
  parts.fix += (parts.fix.empty() ? "" : "; ") + names +
               " may have been written in part: restore what was there before the call is repeated";
  return Status(status.code(), std::move(parts));
}

Outcome OutcomeOf(const KernelEntry& kernel, const Request& r, const Status& failed) {
  switch (failed.code()) {
    case StatusCode::kKernelRefused: return Outcome::kRefused;
    case StatusCode::kContextLost: return Outcome::kContextLost;
    case StatusCode::kOutOfMemory:
    case StatusCode::kNotInstalled:
    case StatusCode::kUntrustedFile:  // its code may not run
    case StatusCode::kKernelFailed: break;
    default: return Outcome::kDone;  // an error of the call
  }
  if (!WrittenInputs(kernel, r).empty()) return Outcome::kFailedAfterWrite;
  return failed.code() == StatusCode::kOutOfMemory ? Outcome::kOutOfMemory : Outcome::kFailed;
}

bool MayFallBack(const Plan& plan, const Request& r) {
  switch (r.outcome) {
    case Outcome::kOutOfMemory: return !plan.locked;
    case Outcome::kRefused:
    case Outcome::kFailed: return plan.fallback != nullptr;
    case Outcome::kWrong: return plan.fallback != nullptr && WrittenInputs(*plan.kernel, r).empty();
    default: return false;
  }
}

Status FirstOrLast(Status first, Status last) {
  const bool later = first.code() == StatusCode::kKernelRefused || last.code() == StatusCode::kContextLost;
  return later ? std::move(last) : std::move(first);
}

Status HostKernelError(const KernelEntry& kernel) {
  return Status(StatusCode::kHostKernel, {.field = "kernel " + kernel.id, .wanted = "a call in the host language"});
}

Status Dispatch(const Plan& plan, Request& r, const DispatchResources& resources) {
  const auto launch = [&] { return Launch(plan, r, resources); };
  if (!plan.checked && !plan.is_watched() && num_observers.load(std::memory_order_relaxed) == 0) [[likely]]
    return launch();
  return RunKernel(plan, *plan.kernel, r, launch);
}

}  // namespace lz
