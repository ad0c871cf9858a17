// liblayerzero_cuda.so: own CUDA kernels with their rows. It is installed next to liblayerzero.so if the build had
// nvcc, loads without a driver (its CUDA runtime is linked in), and is refused unless it comes from the same build. Its
// host compiler may differ from the engine's.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/kernel_row.h"
#include "core/status.h"

namespace lz {

class Registry;

// The library's exports: its build id, the text `lz_cuda_build_id`, and this function, `lz_cuda_rows`.
using CudaRowsFn = void (*)(const RowReceiver* to);

// Rows of another library as KernelSpecs, with the data that their views refer to.
class ReceivedKernels {
 public:
  RowReceiver receiver();
  std::vector<KernelSpec> Specs() const;  // valid while this object lives, also after a move

 private:
  struct Kernel {
    KernelSpec spec;
    std::vector<Constraint> constraints;
    std::deque<std::vector<Constraint>> conditions;  // of each preference
    std::vector<Preference> preferences;
    std::vector<std::string_view> accepts;
  };
  std::deque<Kernel> kernels_;
};

// Registers the library's kernels. Returns false if the file does not exist, and an error if it is from another build
// or does not load; none of its kernels is registered then.
Result<bool> LoadCudaLibrary(Registry& registry, const std::string& path);

// Its path: next to the library (or program) that this code is linked into.
std::string CudaLibraryPath();

}  // namespace lz
