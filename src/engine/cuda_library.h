// liblayerzero_cuda.so: own CUDA kernels with their rows. It lies beside liblayerzero.so where the build had nvcc,
// loads without a driver (its CUDA runtime is linked in), and is of the same build or refused.
#pragma once

#include <cstdint>
#include <string>

#include "core/kernel.h"
#include "core/status.h"

namespace lz {

class Registry;

// The one function that the library exports: its families and its build id.
using CudaLibraryFn = const KernelFamily* const* (*)(const char** build_id, uint64_t* num_families);

// Registers the library's kernels. True: done; false: there is no such file; an error: it is not of this build or does
// not load, and none of its kernels is registered.
Result<bool> LoadCudaLibrary(Registry& registry, const std::string& path);

// Where it would be: beside the library (or program) that this code is linked into.
std::string CudaLibraryPath();

}  // namespace lz
