// How many processors a process may use: quotas of control groups in both versions, as files of a made-up tree.
#include "base/usable_cpus.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>

namespace lz {
namespace {

class Groups : public testing::Test {
 protected:
  const std::string root = testing::TempDir() + "groups." + std::to_string(getpid());

  void TearDown() override { std::filesystem::remove_all(root); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
};

TEST_F(Groups, VersionTwo) {
  EXPECT_EQ(CpuQuota("0::/\n", root), 0);
  Write("cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota("0::/\n", root), 0);
  Write("cpu.max", "250000 100000\n");
  EXPECT_EQ(CpuQuota("0::/\n", root), 3);         // two and a half
  EXPECT_EQ(CpuQuota("0::/pod/web\n", root), 3);  // not seen from inside: the one above holds
  Write("pod/web/cpu.max", "20000 100000\n");
  EXPECT_EQ(CpuQuota("0::/pod/web\n", root), 1);
  Write("pod/cpu.max", "max 100000\n");
  Write("pod/web/cpu.max", "800000 100000\n");
  EXPECT_EQ(CpuQuota("0::/pod/web\n", root), 3);  // the least of all above it
}

TEST_F(Groups, VersionOne) {
  const std::string groups = "9:name=systemd:/x\n4:cpu,cpuacct:/pod\n3:cpuset:/pod\n0::/pod\n";
  EXPECT_EQ(CpuQuota(groups, root), 0);
  Write("cpu,cpuacct/pod/cpu.cfs_quota_us", "-1\n");
  Write("cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(groups, root), 0);
  Write("cpu,cpuacct/pod/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(CpuQuota(groups, root), 4);
  EXPECT_EQ(CpuQuota("3:cpuset:/pod\n2:cpuacct:/pod\n", root), 0);
}

TEST_F(Groups, WhatIsNoQuota) {
  Write("cpu.max", "nothing here\n");
  for (const char* groups : {"", "\n", "0", "0:", "0::", "::::", "0::/a/../b"}) EXPECT_EQ(CpuQuota(groups, root), 0);
  Write("cpu.max", "1e300 1\n");
  EXPECT_EQ(CpuQuota("0::/\n", root), 1000000);
}

TEST(UsableCpus, IsOneWhereOneIsAllowed) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(UsableCpus(), 1);
  EXPECT_LE(UsableCpus(), CPU_COUNT(&before));
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(UsableCpus(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace lz
