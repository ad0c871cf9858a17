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

// The workspace of a candidate: of a host kernel as its descriptor declares it.
uint64_t WorkspaceBytes(const Candidate& candidate, const Request& request);

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

// The outcome of a kernel whose run, past its beginning, ended with this status.
LZ_OWN Outcome OutcomeOf(const KernelEntry& kernel, const Request& request, const Status& failed);
// True if another kernel may run after the failure in `request.outcome`.
bool MayFallBack(const Plan& plan, const Request& request);
// The status of a call whose kernels failed with `first` and later with `last`: the first one, unless that kernel has
// only refused, or the device is lost now.
LZ_OWN Status FirstOrLast(Status first, Status last);
// The status of a host kernel where only native ones can run.
LZ_OWN Status HostKernelError(const KernelEntry& kernel);

// Runs the plan's kernel, which must be native, on a bound request whose outputs are set. If the kernel fails,
// request.outcome says how.
Status Dispatch(const Plan& plan, Request& request, const DispatchResources& resources);

}  // namespace lz
