// Registration of torch.ops.layerzero.* at load, for the engine of the same build.
#include <torch/csrc/stable/library.h>

#include <cstring>

#include "build_id.h"
#include "engine/engine.h"

// Why nothing was registered, or nullptr. Read by the Python side right after the load: a throw at load would end the
// process.
extern "C" LZ_OWN const char* layerzero_torch_problem() {
  return std::strcmp(lz::Engine::BuildId(), LZ_BUILD_ID) == 0
             ? nullptr
             : "liblayerzero_torch.so and liblayerzero.so are of different builds; install one wheel";
}

STABLE_TORCH_LIBRARY(layerzero, m) {}
