// The C libraries of the test machine, named for every engine of this process before main begins.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/kernel.h"
#include "policy/policy.h"
#include "test_paths.h"

namespace lz::libraries {

inline const int kNamed = setenv("LAYERZERO_LIBRARIES",
                                 "openblas=libopenblas.so.0,onednn=" LZ_SOURCE_DIR
                                 "/.venv/lib/libdnnl.so.3,libxsmm=" LZ_SOURCE_DIR "/.venv/lib/libxsmm.so",
                                 0);

// Opens the library of `kernel`; why it cannot be used here, or null.
inline const char* OpenFor(const KernelSpec& kernel) {
  const auto libraries = NamedLibraries();
  const auto at = libraries.find(kernel.id.substr(0, kernel.id.find('.')));
  return kernel.open(at == libraries.end() ? nullptr : at->second.c_str());
}

}  // namespace lz::libraries
