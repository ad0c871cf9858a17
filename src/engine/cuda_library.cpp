#include "engine/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <vector>

#include "build_id.h"
#include "registry/registry.h"

namespace lz {

std::string CudaLibraryPath() {
  Dl_info own{};
  if (!dladdr(reinterpret_cast<const void*>(&CudaLibraryPath), &own) || !own.dli_fname) return {};
  const std::string path = own.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "liblayerzero_cuda.so";
}

Result<bool> LoadCudaLibrary(Registry& registry, const std::string& path) {
  if (path.empty() || access(path.c_str(), F_OK) != 0) return false;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto refuse = [&](std::string wanted, std::string got) {
    if (library) dlclose(library);
    return Status(StatusCode::kVersionMismatch, {.field = path,
                                                 .wanted = std::move(wanted),
                                                 .got = std::move(got),
                                                 .fix = "install both libraries from one build"});
  };
  if (!library) {
    const char* why = dlerror();
    return refuse("a library that loads", why ? why : "an unknown failure");
  }
  const auto table = reinterpret_cast<CudaLibraryFn>(dlsym(library, "lz_cuda_library"));
  if (!table) return refuse("the function lz_cuda_library", "none");
  const char* build_id = "";
  uint64_t num_families = 0;
  const KernelFamily* const* families = table(&build_id, &num_families);
  if (std::string_view(build_id) != LZ_BUILD_ID) return refuse(LZ_BUILD_ID, build_id);
  std::vector<Registry::Registration> rows;
  for (uint64_t i = 0; i < num_families; ++i) {
    for (const KernelSpec& spec : *families[i]) rows.push_back({&spec, {}, {}});
  }
  Status registered = registry.Register(rows);
  if (registered.ok()) return true;  // the library stays: the kernels are in it
  dlclose(library);
  return registered;
}

}  // namespace lz
