#include "engine/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>
#include <utility>

#include "build_id.h"
#include "registry/registry.h"

namespace lz {

std::string CudaLibraryPath() {
  Dl_info own{};
  if (!dladdr(reinterpret_cast<const void*>(&CudaLibraryPath), &own) || !own.dli_fname) return {};
  const std::string path = own.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "liblayerzero_cuda.so";
}

namespace {
std::string_view View(RowText text) { return {text.data, text.size}; }
Constraint FromRow(const ConstraintRow& row) {
  return {View(row.field), row.rel, row.operand, {row.set, row.set_size}, row.code, View(row.fact)};
}
}  // namespace

RowReceiver ReceivedKernels::receiver() {
  using Kernels = std::deque<Kernel>;
  RowReceiver to = {};
  to.self = &kernels_;
  to.kernel = [](void* self, const KernelRow* row) {
    KernelSpec& spec = static_cast<Kernels*>(self)->emplace_back().spec;
    spec = {.id = View(row->id),
            .operation = View(row->operation),
            .source = View(row->source),
            .version = row->version,
            .platform = row->platform,
            .dtypes = row->dtypes,
            .strides = row->strides,
            .priority = row->priority,
            .deterministic = row->deterministic,
            .cuda_graph_safe = row->cuda_graph_safe,
            .requires_grad = row->requires_grad,
            .reference = row->reference,
            .numerics = View(row->numerics),
            .tp = row->tp,
            .call = row->call,
            .launch = row->launch,
            .workspace = row->workspace,
            .open = row->open};
  };
  to.constraint = [](void* self, const ConstraintRow* row) {
    static_cast<Kernels*>(self)->back().constraints.push_back(FromRow(*row));
  };
  to.preference = [](void* self, int32_t priority) {
    Kernel& kernel = static_cast<Kernels*>(self)->back();
    kernel.conditions.emplace_back();
    kernel.preferences.push_back({{}, priority});
  };
  to.condition = [](void* self, const ConstraintRow* row) {
    Kernel& kernel = static_cast<Kernels*>(self)->back();
    kernel.conditions.back().push_back(FromRow(*row));
    kernel.preferences.back().when = kernel.conditions.back();
  };
  to.accepts = [](void* self, RowText parameter) {
    static_cast<Kernels*>(self)->back().accepts.push_back(View(parameter));
  };
  return to;
}

std::vector<KernelSpec> ReceivedKernels::Specs() const {
  std::vector<KernelSpec> specs;
  for (const Kernel& kernel : kernels_) {
    specs.push_back(kernel.spec);
    specs.back().constraints = kernel.constraints;
    specs.back().preferences = kernel.preferences;
    specs.back().accepts = kernel.accepts;
  }
  return specs;
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
  // Data, so that it is read before any code of the library runs: another build's library may have other functions
  // under these names.
  const auto* build_id = static_cast<const char*>(dlsym(library, "lz_cuda_build_id"));
  if (!build_id) return refuse("the symbol lz_cuda_build_id", "none");
  if (std::string_view(build_id) != LZ_BUILD_ID) return refuse(LZ_BUILD_ID, build_id);
  const auto send_rows = reinterpret_cast<CudaRowsFn>(dlsym(library, "lz_cuda_rows"));
  if (!send_rows) return refuse("the function lz_cuda_rows", "none");
  ReceivedKernels received;
  const RowReceiver receiver = received.receiver();
  send_rows(&receiver);
  const std::vector<KernelSpec> specs = received.Specs();
  std::vector<Registry::Registration> rows;
  for (const KernelSpec& spec : specs) rows.push_back({&spec, {}, {}});
  Status registered = registry.Register(rows);
  if (!registered.ok()) {
    dlclose(library);
    return registered;
  }
  // The library stays loaded because it contains the kernels; so do its rows.
  static std::mutex mutex;
  static auto* const kept = new std::deque<ReceivedKernels>;
  std::lock_guard lock(mutex);
  kept->push_back(std::move(received));
  return true;
}

}  // namespace lz
