// Kernels from outside: libraries described by capabilities.json and C++ plugins behind the C ABI.
#include "engine/engine.h"

namespace lz {

Status Engine::RegisterBackend(std::string_view, std::string_view) { return {}; }
Status Engine::LoadPlugin(const std::string&, const std::string&) { return {}; }

}  // namespace lz
