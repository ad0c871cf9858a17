// Health in the filter: kernels that failed or are known to be wrong for a call are refused with the reason; references
// never are.
#pragma once

#include <span>
#include <vector>

#include "health/health.h"
#include "pipeline/filter.h"

namespace lz {

// The class of a call for the quarantine: the first tensor's dtype and every option of the operation.
std::vector<CallCondition> ClassOf(const BoundCall& call);

// Call it inside a Reclaimer::Guard. `failed`: kernels that failed in this call. They are refused too, even references.
void ApplyHealth(BoundCall& call, const Device& device, const OperationPolicy& policy, Health& health,
                 std::span<const KernelEntry* const> failed, std::vector<Candidate>* candidates);

// True if a kernel does not say whether it is safe in a CUDA graph: it is refused in one, but neither declared unsafe.
bool SaysNothingOfGraphs(const KernelEntry& kernel);

// Marks a watched run; pass the result to Health::Left.
int MarkRun(Health& health, const KernelEntry& kernel, const BoundCall& call);

}  // namespace lz
