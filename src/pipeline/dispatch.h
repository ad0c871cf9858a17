// 8 dispatch: copies what the plan says, gets workspace, calls the kernel. The only stage that touches data.
#pragma once

#include "core/status.h"
#include "pipeline/plan.h"
#include "pipeline/request.h"

namespace lz {

// Bytes of workspace that the plan needs for this request, copies included.
uint64_t WorkspaceBytes(const Plan& plan, const Request& request);

// Runs a native plan on a bound request whose outputs are set. kHostKernel: the door has to call it. A failing kernel
// falls back to the plan's reference once, unless it was locked; `*fell_back` tells.
Status Dispatch(const Plan& plan, Request& request, const lz_parallel& threads, bool* fell_back);

}  // namespace lz
