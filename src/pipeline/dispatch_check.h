// Debug mode: the results of a kernel in host memory are checked after each dispatch, and a faulty kernel is named.
#pragma once

#include "core/status.h"
#include "pipeline/plan.h"
#include "pipeline/request.h"

namespace lz {

// Debug mode reads memory of the host alone.
inline bool IsChecked(const Plan& plan, const Request& r) { return plan.checked && r.on_cpu(); }
// Guard bytes after the kernel's workspace, which it must not change; 0 where nothing is checked.
inline constexpr uint64_t kGuardBytes = 64;
inline uint64_t CheckBytes(const Plan& plan, const Request& r) { return IsChecked(plan, r) ? kGuardBytes : 0; }
void PlantGuard(char* guard);

// `args`: those of the launch. A broken guard, or a NaN in an output where the inputs are finite and the operation's
// reference has none, is an error that names the kernel.
Status CheckDispatch(const Plan& plan, const KernelEntry& kernel, const Request& request, const lz_kernel_args& args,
                     const char* guard);

}  // namespace lz
