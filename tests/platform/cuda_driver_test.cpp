// CUDA's driver at run time: without one every function says so; with one the first device becomes current and goes.
#include "platform/cuda_driver.h"

#include <gtest/gtest.h>

#include <thread>

#include "platform/device.h"

namespace lz {
namespace {

TEST(CudaDriver, WithoutOneNothingIsCurrentNorCapturing) {
  std::string why = "stale";
  if (FindCudaDriver(&why)) GTEST_SKIP() << "this machine has a driver";
  EXPECT_NE(why.find("libcuda.so.1"), std::string::npos) << why;
  EXPECT_EQ(FindCudaDriver(), nullptr);
  EXPECT_EQ(CurrentCudaDevice(), -1);
  int stream = 0;
  EXPECT_FALSE(CudaStreamIsCapturing(nullptr));
  EXPECT_FALSE(CudaStreamIsCapturing(&stream));
  EXPECT_FALSE(CudaDeviceGuard(0).ok());
}

TEST(CudaDriver, AGuardMakesItsDeviceCurrentOnThisThread) {
  if (ProbeCudaDevices(nullptr).empty()) GTEST_SKIP() << "needs a CUDA device";
  std::thread([] {  // a thread of its own has no device
    EXPECT_EQ(CurrentCudaDevice(), -1);
    {
      const CudaDeviceGuard guard(0);
      ASSERT_TRUE(guard.ok());
      EXPECT_EQ(CurrentCudaDevice(), 0);
      EXPECT_TRUE(CudaDeviceGuard(0).ok());
      EXPECT_EQ(CurrentCudaDevice(), 0);
    }
    EXPECT_EQ(CurrentCudaDevice(), -1);
    EXPECT_FALSE(CudaDeviceGuard(63).ok());
    EXPECT_FALSE(CudaDeviceGuard(-1).ok());
    EXPECT_FALSE(CudaStreamIsCapturing(nullptr));
  })
      .join();
}

}  // namespace
}  // namespace lz
