// Shadow checks: a share of the calls of a process is compared with the operation's reference, by the contract's
// tolerance, and a kernel that is wrong is quarantined. On a CPU the caller waits and another kernel answers a call
// whose result was wrong. On a GPU the tensors are copied to the host and compared there on a thread of its own.
#pragma once

#include <memory>

#include "pipeline/dispatch_observer.h"
#include "pipeline/selector.h"

namespace lz::verify {

// Calls are sampled by the policy's health.shadow_rate. Not compared: references, operations and calls that write their
// inputs; on a GPU also captured calls, those with more than 256 MiB, and those that come while one is being compared.
std::shared_ptr<Observer> MakeShadow(Selector& selector);

extern bool (*copy_from_device)(void* stream, const void* from, size_t bytes, void* to);  // tests set it

}  // namespace lz::verify
