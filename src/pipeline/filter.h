// 5 filter: hard rules. Every kernel of the operation is either admissible or keeps all its reasons.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/reason.h"
#include "pipeline/policy_store.h"
#include "pipeline/request.h"
#include "platform/device.h"

namespace lz {

// What is known about one kernel for one call.
struct Term {
  const char* name;  // "priority", "preferred", "avoided", "measured", "transforms"
  double value;
  const char* source;  // "declared", "policy", "measured", "none"
};
struct Candidate {
  const KernelEntry* kernel = nullptr;
  std::vector<Reason> reasons;     // empty: admissible
  uint32_t contiguous_inputs = 0;  // admissible after copying these
  bool preferred = false, avoided = false;
  std::vector<Term> terms;
  double score = 0;
  double measured_us = 0;  // 0: not measured
  bool admissible() const { return reasons.empty(); }
};

// The variant of the contract that this call is: the first whose conditions hold; -1 when none does.
int VariantOf(const Request& request);

// All kernels of `variant`, with reasons. `lock`: the kernel that policy or caller names, or empty.
std::vector<Candidate> Filter(const Request& request, int variant, const Device& device, const OperationPolicy& policy);

// The lock that holds for this call: a rule's before the policy's. Empty: none.
std::string LockOf(const Request& request, int variant, const Device& device, const OperationPolicy& policy);

}  // namespace lz
