// Where cuBLASLt is found and when it is opened, and a kernel's calls of it.
#include <dlfcn.h>

#include <atomic>

#include "base/found_library.h"
#include "kernels/gemm/cublaslt.h"
#include "platform/cuda_driver.h"

namespace lz::cublaslt {
namespace {

constexpr std::array kNames = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr int32_t kCudaOutOfMemory = 1002;  // error 2 of CUDA's runtime, as a launch returns it

// A library that was opened, for the life of the process.
struct Opened {
  Opened(const char* path, std::string where) : library(path), origin(std::move(where)), plans(api) {
    if (!library.why()) Bind(library, &api);
  }
  Library library;
  std::string origin;
  Api api;
  Plans plans;
};

class OfThisProcess {
 public:
  // Why the library that is open, or the one of this path, cannot be used; null if it can.
  const char* Named(const char* path) {
    std::lock_guard lock(mutex_);
    return Keep(path, "LAYERZERO_LIBRARIES")->library.why();
  }

  // Why there is none. Opens nothing: a library that torch opens later must not find another one of its name here.
  const char* Search() {
    std::lock_guard lock(mutex_);
    if (const Opened* opened = InProcess()) return opened->library.why();
    if (!FoundLibrary("cublaslt").empty()) return nullptr;
    return "neither libcublasLt.so.13 nor libcublasLt.so.12 was found: torch with CUDA brings one; "
           "LAYERZERO_LIBRARIES=cublaslt=<path> names another";
  }

  Opened* Get() {
    if (Opened* opened = opened_.load(std::memory_order_acquire)) return opened->library.why() ? nullptr : opened;
    std::lock_guard lock(mutex_);
    Opened* opened = InProcess();
    // Opening runs code, for which there is no use without a driver: a device that is only simulated needs none.
    if (const std::string found = FoundLibrary("cublaslt"); !opened && !found.empty() && FindCudaDriver()) {
      opened = Keep(found.c_str(), "a file that the host found");
    }
    return opened && !opened->library.why() ? opened : nullptr;
  }

  std::string origin() {
    const Opened* opened = opened_.load(std::memory_order_acquire);
    return opened ? opened->origin : "";
  }

 private:
  Opened* Keep(const char* path, const char* where) {
    if (Opened* opened = opened_.load(std::memory_order_acquire)) return opened;
    auto* opened = new Opened(path, where);  // never closed: kernels use its functions
    opened_.store(opened, std::memory_order_release);
    return opened;
  }
  Opened* InProcess() {
    if (Opened* opened = opened_.load(std::memory_order_acquire)) return opened;
    for (const char* name : kNames) {
      if (dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return Keep(name, "the process");
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::atomic<Opened*> opened_ = nullptr;
};

OfThisProcess& Process() {
  static auto& process = *new OfThisProcess;
  return process;
}

bool IsEmpty(const Product& p) { return p.rows == 0 || p.n == 0 || p.batch == 0; }
uint64_t Padded(uint64_t bytes) { return bytes == 0 ? 0 : bytes + kWorkspaceAlignment; }

// Nothing was written if cublasLtMatmul refuses its arguments or the device.
int32_t CodeOf(int status) {
  switch (status) {
    case kSuccess: return LZ_LAUNCH_DONE;
    case kInvalidValue:
    case kArchMismatch:
    case kNotSupported: return LZ_LAUNCH_REFUSED;
    case kAllocFailed: return kCudaOutOfMemory;
    default: return kErrors + status;
  }
}

}  // namespace

const char* Open(const char* path) { return path ? Process().Named(path) : Process().Search(); }

Plans* OfProcess() {
  Opened* opened = Process().Get();
  return opened ? &opened->plans : nullptr;
}

std::string Origin() { return Process().origin(); }

uint64_t WorkspaceOf(const Product& product, int choice) {
  if (IsEmpty(product)) return 0;
  Plans* plans = OfProcess();
  const auto plan = plans ? plans->Get(product, AlignmentOf({})) : nullptr;
  return plan ? Padded(plan->workspace_bytes(choice)) : 0;
}

bool Serves(const Product& product, const Operands& operands) {
  Plans* plans = OfProcess();
  const auto plan = plans ? plans->Get(product, AlignmentOf(operands)) : nullptr;
  return plan && plan->choices() > 0;
}

int32_t Multiply(const Product& product, const Operands& operands, int choice, const lz_kernel_args* args,
                 uint64_t skipped_workspace) {
  if (IsEmpty(product)) return LZ_LAUNCH_DONE;
  Plans* plans = OfProcess();
  const Object handle = plans ? plans->Handle(product.device) : nullptr;
  const auto plan = handle ? plans->Get(product, AlignmentOf(operands)) : nullptr;
  if (!plan) return LZ_LAUNCH_REFUSED;
  const auto from = reinterpret_cast<uintptr_t>(args->workspace) + skipped_workspace;
  const uintptr_t aligned = (from + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  const uint64_t bytes = plan->workspace_bytes(choice);
  const uintptr_t end = reinterpret_cast<uintptr_t>(args->workspace) + args->workspace_bytes;
  if (bytes > 0 && aligned + bytes > end) return LZ_LAUNCH_REFUSED;
  void* const workspace = bytes > 0 ? reinterpret_cast<void*>(aligned) : nullptr;  // NOLINT(performance-no-int-to-ptr)
  return CodeOf(plan->Run(handle, operands, choice, workspace, args->stream));
}

}  // namespace lz::cublaslt
