// Shadow checks: a share of the calls of a process is compared with the operation's reference, by the contract's
// tolerance, before the caller has the result. A kernel that is wrong is quarantined and another one answers.
#pragma once

#include <memory>

#include "pipeline/dispatch_observer.h"
#include "pipeline/selector.h"

namespace lz::verify {

// Calls are sampled by the policy's health.shadow_rate. Not compared: references, operations and calls that write their
// inputs, tensors that are not in host memory.
std::shared_ptr<Observer> MakeShadow(Selector& selector);

}  // namespace lz::verify
