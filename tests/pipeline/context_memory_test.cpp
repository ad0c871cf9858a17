#include "pipeline/context_memory.h"

#include "selector_fixture.h"

namespace lz {
namespace {

constexpr int64_t kMiB = 1 << 20;

struct FreeMemoryTest : SelectorFixture {
  FreeMemoryTest() {
    gpu.platform = Platform::kCuda;
    gpu.facts[size_t(DeviceField::kMemoryBytes)] = 1000 * kMiB;
    memory.set_gpu([this](int32_t ordinal) {
      ++asked;
      return ordinal == 7 ? -1 : free;
    });
  }
  int64_t Of(int32_t ordinal = 0, bool capturing = false) {
    Call& call = MakeCall("rms_norm", "input=f32[2,64]");
    call.r.where = {2, ordinal};
    if (capturing) call.r.flags |= LZ_FLAG_CAPTURING;
    return memory.Of(call.r, gpu);
  }
  FreeMemory memory;
  Device gpu;
  int64_t free = 70 * kMiB;
  int asked = 0;
};

TEST_F(FreeMemoryTest, AGpuIsAskedOnceUntilAnAllocationFails) {
  EXPECT_EQ(Of(), 70 * kMiB);
  free = 5 * kMiB;
  EXPECT_EQ(Of(), 70 * kMiB);
  EXPECT_EQ(asked, 1);
  memory.Forget();
  EXPECT_EQ(Of(), 5 * kMiB);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(Of(1), 5 * kMiB);  // each device by itself
  EXPECT_EQ(asked, 3);
}

TEST_F(FreeMemoryTest, ACaptureAsksNothing) {
  EXPECT_EQ(Of(0, true), 1000 * kMiB);  // nothing is known: all memory of the device
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(Of(), 70 * kMiB);
  memory.Forget();
  EXPECT_EQ(Of(0, true), 70 * kMiB);
  EXPECT_EQ(asked, 1);
}

TEST_F(FreeMemoryTest, WhatIsUnknownIsAllMemoryOfTheDevice) {
  EXPECT_EQ(Of(7), 1000 * kMiB);
  gpu.facts[size_t(DeviceField::kMemoryBytes)] = 0;
  EXPECT_EQ(Of(7), INT64_MAX);
}

TEST_F(FreeMemoryTest, ASimulatedDeviceHasAllItsMemory) {
  gpu.simulated = true;
  EXPECT_EQ(Of(), 1000 * kMiB);
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace lz
