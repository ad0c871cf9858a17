// Tests a kernel from outside before any call may select it: on calls drawn from its operation's contract and its own
// rules, compared with the operation's reference like every conformance case.
#pragma once

#include "verify/run.h"

namespace lz::verify {

// `selector` need not be the process's. An error names the call and the fault of the result. Kernels that admit no
// drawn call pass.
LZ_VERIFY_API Status SelfTest(Selector& selector, const KernelEntry& kernel);

}  // namespace lz::verify
