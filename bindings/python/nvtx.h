// NVTX ranges around runs of kernels, for Nsight Systems and other tools.
#pragma once

#include <memory>

#include "pipeline/dispatch_observer.h"

namespace lz::python {

// nullptr: this build was made without NVTX's headers.
std::shared_ptr<Observer> MakeNvtxObserver();

}  // namespace lz::python
