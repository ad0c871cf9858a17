// A kernel that nobody here has built is tried before any call may get it: on calls drawn from its operation's contract
// and its own rules, compared with the operation's reference like every conformance case.
#pragma once

#include "verify/run.h"

namespace lz::verify {

// `selector` need not be the process's. An error names the call and what is wrong with the result. Kernels that no
// drawn call admits pass.
LZ_VERIFY_API Status SelfTest(Selector& selector, const KernelEntry& kernel);

}  // namespace lz::verify
