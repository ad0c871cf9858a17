// The stand-in for cuBLASLt as the library of this process.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "kernels/gemm/cublaslt.h"
#include "test_paths.h"
#include "tests/kernels/gemm/fake_cublaslt.h"

namespace lz::testing {

inline constexpr const char* kFakeCublasLt = LZ_BINARY_DIR "/plugins/libfake_cublaslt.so";

inline FakeCublasLt& FakeState(const char* path = kFakeCublasLt) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  auto* state = library ? reinterpret_cast<FakeCublasLt* (*)()>(dlsym(library, "fake_cublaslt_state")) : nullptr;
  if (state) return *state();
  ADD_FAILURE() << dlerror();
  static FakeCublasLt none;
  return none;
}

// Kernels call the stand-in, which does what it does by default.
class CublasLtTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* why = cublaslt::Open(kFakeCublasLt);
    ASSERT_EQ(why, nullptr) << why;
    ASSERT_EQ(cublaslt::Origin(), "LAYERZERO_LIBRARIES");
    Reset();
  }
  void TearDown() override { Reset(); }
  FakeCublasLt& fake() { return FakeState(); }

 private:
  void Reset() {
    const FakeCublasLt fresh;
    fake().algorithms = fresh.algorithms, fake().create_status = fresh.create_status;
    fake().product_status = fresh.product_status, fake().status_of_first = fresh.status_of_first;
  }
};

}  // namespace lz::testing
