// 8 dispatch: transforms what the plan says, gets workspace, calls the kernel. The only stage that touches data.
#pragma once

#include <string>

#include "core/status.h"
#include "pipeline/plan.h"
#include "pipeline/request.h"
#include "pipeline/transform.h"

namespace lz {

// Bytes of workspace that the plan's kernel needs for this request, transforms included.
uint64_t WorkspaceBytes(const Plan& plan, const Request& request);
uint64_t WorkspaceBytes(const KernelEntry& kernel, const Transforms& transforms, const Request& request);

// What a call may use. `may_take`: asked before the engine takes more memory from the system than it did before.
struct DispatchResources {
  const lz_parallel& threads;
  Status (*may_take)(void* self, const Request& request, uint64_t bytes) = nullptr;  // nullptr: it always may
  void* self = nullptr;
};

// The inputs, by name, that `kernel` writes in a call: in place, or as an output that shares memory with them. Empty:
// none, so that another kernel may answer after this one has stopped halfway.
std::string WrittenInputs(const KernelEntry& kernel, const Request& request);
// A kernel's error; it says which inputs may be half written.
Status WithWrittenInputs(const KernelEntry& kernel, const Request& request, Status failed);

// Whether the plan's fallback may answer a call whose kernel failed like this. kKernelRefused: the kernel wrote
// nothing. Any other failure of a kernel may have left its work half done, which a fallback must not read.
bool MayFallBack(const Plan& plan, const Request& request, const Status& failed);
// Of a kernel that failed and the fallback after it: what the caller gets.
Status OutcomeOf(Status failed, Status answered);

// Runs a native plan on a bound request whose outputs are set. kHostKernel: the door has to call it. A failing kernel
// falls back to the plan's reference once, where MayFallBack allows it; request.fell_back says so.
Status Dispatch(const Plan& plan, Request& request, const DispatchResources& resources);
// The fallback alone, after the plan's kernel has failed at the door.
Status DispatchFallback(const Plan& plan, Request& request, const DispatchResources& resources);

}  // namespace lz
