// liblayerzero_cuda.so is optional, and what is no such library of this build is refused.
#include "engine/cuda_library.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "test_paths.h"

namespace lz {
namespace {

TEST(CudaLibrary, AbsentIsNoError) {
  auto loaded = LoadCudaLibrary(Engine::Get().selector().registry(), "/nonexistent/liblayerzero_cuda.so");
  ASSERT_TRUE(loaded.ok());
  EXPECT_FALSE(*loaded);
  EXPECT_TRUE(CudaLibraryPath().ends_with("/liblayerzero_cuda.so"));
}

TEST(CudaLibrary, AnotherLibraryIsRefused) {
  auto loaded = LoadCudaLibrary(Engine::Get().selector().registry(), LZ_BINARY_DIR "/plugins/libplugin_good.so");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kVersionMismatch);
  EXPECT_EQ(loaded.status().parts().wanted, "the function lz_cuda_library");
}

}  // namespace
}  // namespace lz
