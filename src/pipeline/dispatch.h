// 8 dispatch: applies the plan's transforms, gets workspace, calls the kernel. The only stage that touches data.
#pragma once

#include <string>

#include "base/export.h"
#include "core/status.h"
#include "pipeline/plan.h"
#include "pipeline/request.h"
#include "pipeline/transform.h"

namespace lz {

// Bytes of workspace that the plan's kernel needs for this request, transforms included.
uint64_t WorkspaceBytes(const Plan& plan, const Request& request);
LZ_OWN uint64_t WorkspaceBytes(const KernelEntry& kernel, const Transforms& transforms, const Request& request);

// What a call may use. `may_take` is called before the engine allocates more memory than it ever held.
struct DispatchResources {
  const lz_parallel& threads;
  Status (*may_take)(void* self, const Request& request, uint64_t bytes) = nullptr;  // nullptr: always allowed
  void* self = nullptr;
};

// The inputs, by name, that `kernel` writes in a call: in place, or as an output that shares memory with them. Empty:
// none, so that another kernel may run after this one has stopped halfway.
std::string WrittenInputs(const KernelEntry& kernel, const Request& request);
// A kernel's error with the names of the inputs that may be partly written.
LZ_OWN Status WithWrittenInputs(const KernelEntry& kernel, const Request& request, Status failed);

// True if the plan's fallback may run after this failure. kKernelRefused: the kernel wrote nothing. After any other
// failure outputs may be partly written, and a fallback must not read them.
LZ_OWN bool MayFallBack(const Plan& plan, const Request& request, const Status& failed);
// True if a call's status is its fallback's, false if it is that of the kernel that failed first.
LZ_OWN bool FallbackDecides(const Status& failed, const Status& answered);
// The status of a host kernel where only native ones can run.
LZ_OWN Status HostKernelError(const KernelEntry& kernel);

// Runs a native plan on a bound request whose outputs are set. kHostKernel: the binding has to call it. A failing
// kernel falls back to the plan's reference once, if MayFallBack allows it, and sets request.fell_back.
Status Dispatch(const Plan& plan, Request& request, const DispatchResources& resources);
// Runs only the fallback, after the plan's host kernel failed in the binding.
Status DispatchFallback(const Plan& plan, Request& request, const DispatchResources& resources);

}  // namespace lz
