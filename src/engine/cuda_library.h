// liblayerzero_cuda.so: own CUDA kernels with their rows. It lies beside liblayerzero.so where the build had nvcc,
// loads without a driver (its CUDA runtime is linked in), and is of the same build or refused. Its host compiler may be
// another than the engine's.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/kernel_row.h"
#include "core/status.h"

namespace lz {

class Registry;

// What the library exports: its build id, the text `lz_cuda_build_id`, and this function, `lz_cuda_rows`.
using CudaRowsFn = void (*)(const RowReceiver* to);

// Rows of another library as KernelSpecs, with what their views point to.
class ReceivedKernels {
 public:
  RowReceiver receiver();
  std::vector<KernelSpec> Specs() const;  // valid while this lives, moved or not

 private:
  struct Kernel {
    KernelSpec spec;
    std::vector<Constraint> constraints;
    std::vector<std::string_view> accepts;
  };
  std::deque<Kernel> kernels_;
};

// Registers the library's kernels. True: done; false: there is no such file; an error: it is not of this build or does
// not load, and none of its kernels is registered.
Result<bool> LoadCudaLibrary(Registry& registry, const std::string& path);

// Where it would be: beside the library (or program) that this code is linked into.
std::string CudaLibraryPath();

}  // namespace lz
