// 8 dispatch: transforms what the plan says, gets workspace, calls the kernel. The only stage that touches data.
#pragma once

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

// Runs a native plan on a bound request whose outputs are set. kHostKernel: the door has to call it. A failing kernel
// falls back to the plan's reference once, unless it was locked; request.fell_back tells.
Status Dispatch(const Plan& plan, Request& request, const DispatchResources& resources);
// The fallback alone, after the plan's kernel has failed at the door.
Status DispatchFallback(const Plan& plan, Request& request, const DispatchResources& resources);

}  // namespace lz
