// x86::Tiles: a thread's tiles have the shapes that they had before.
#include <gtest/gtest.h>

#include <cstring>

#include "platform/device.h"

#if defined(__x86_64__)
#include "kernels/gemm/x86_amx.h"

namespace lz {
namespace {

struct Shapes {
  uint8_t bytes[64];
  bool operator==(const Shapes& o) const { return std::memcmp(bytes, o.bytes, sizeof(bytes)) == 0; }
};
Shapes OfThisThread() {
  Shapes s;
  asm volatile("sttilecfg %0" : "=m"(s));
  return s;
}

class X86Tiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!(HostCpu().fact(DeviceField::kIsa) & kIsaAmxInt8)) GTEST_SKIP() << "this CPU has no AMX";
  }
};
constexpr uint16_t kWide[8] = {64, 64, 64, 64, 64, 64, 64, 64}, kNarrow[8] = {32, 32, 32, 32, 4, 4, 4, 4};
constexpr uint8_t kHigh[8] = {16, 16, 16, 16, 16, 16, 16, 16}, kLow[8] = {3, 3, 3, 3, 3, 3, 3, 3};

TEST_F(X86Tiles, LeaveNoneWhereNoneWere) {
  const Shapes none = OfThisThread();
  {
    const x86::Tiles tiles(kWide, kHigh);
    EXPECT_FALSE(OfThisThread() == none);
  }
  EXPECT_TRUE(OfThisThread() == none);
}

TEST_F(X86Tiles, LeaveThoseOfSomebodyElse) {
  const x86::Tiles other(kNarrow, kLow);
  const Shapes before = OfThisThread();
  {
    const x86::Tiles tiles(kWide, kHigh);
    EXPECT_FALSE(OfThisThread() == before);
  }
  EXPECT_TRUE(OfThisThread() == before);
}

}  // namespace
}  // namespace lz
#endif
