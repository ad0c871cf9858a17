// Which of several runs in one database decides.
#include "perfdb/runs.h"

#include <gtest/gtest.h>

#include <set>

#include "rows.h"

namespace lz::perfdb {
namespace {

const Here kHere = {.is_loaded = [](const Record& r) { return r.torch_version == "2.13.0"; },
                    .uuids = {"GPU-1"},
                    .driver = "580.65",
                    .now = 1769860800};

std::multiset<double> Times(std::vector<Record> records) {
  std::multiset<double> times;
  for (const Record& r : InForce(std::move(records), kHere)) times.insert(r.median_us);
  return times;
}

Record With(
    double us, const std::function<void(Record&)>& change = [](Record&) {}) {
  Record r = Row(4, us);
  change(r);
  return r;
}

TEST(Runs, OneRunDecidesForAnOperationAndDevice) {
  using Times_ = std::multiset<double>;
  const auto newer = [](Record& r) { r.measured_at = "2027-01-31T12:00:00Z"; };
  const auto other_torch = [](Record& r) { r.torch_version = "2.14.0", r.measured_at = "2027-01-31T12:00:00Z"; };
  // All kernels of the run, none of the other's, whichever is first.
  EXPECT_EQ(Times({With(1), With(2), With(9, other_torch)}), (Times_{1, 2}));
  EXPECT_EQ(Times({With(9, other_torch), With(1)}), (Times_{1}));
  EXPECT_EQ(Times({With(9, other_torch)}), (Times_{9}));  // a hint, if there is nothing else
  const auto of = [](const char* uuid, auto also) {
    return [=](Record& r) {
      r.device_uuid = uuid;
      also(r);
    };
  };
  EXPECT_EQ(Times({With(1, of("GPU-1", [](Record&) {})), With(2, of("GPU-2", newer))}), (Times_{1}));
  EXPECT_EQ(Times({With(1, of("GPU-3", [](Record&) {})), With(2, of("GPU-2", newer))}), (Times_{2}));
  const auto hot = [=](Record& r) {
    newer(r);
    r.temperature = "hot";
  };
  EXPECT_EQ(Times({With(1), With(2, hot)}), (Times_{1}));
  const auto other_operation = [=](Record& r) {
    other_torch(r);
    r.operation = "norm.layer";
  };
  EXPECT_EQ(Times({With(1), With(2, other_operation)}), (Times_{1, 2}));
}

TEST(Runs, WhatIsOfNoUseHereIsLeftOut) {
  EXPECT_TRUE(Times({With(1, [](Record& r) { r.valid = false; })}).empty());
  EXPECT_TRUE(Times({With(1, [](Record& r) { r.protocol += 1; })}).empty());
  EXPECT_TRUE(Times({With(1, [](Record& r) { r.driver_version = "570.10"; })}).empty());
  EXPECT_FALSE(Times({With(1, [](Record& r) { r.driver_version = "580.65"; })}).empty());
  EXPECT_TRUE(Times({With(1, [](Record& r) {
                r.torch_version = "2.14.0.dev20251101";
                r.measured_at = "2025-11-01T12:00:00Z";
              })}).empty());
}

// Prior uses the last of several builds of a kernel.
TEST(Runs, TheLatestBuildOfAKernelComesLast) {
  auto records = InForce({With(1, [](Record& r) { r.backend_version = "2", r.measured_at = "2027-01-31T12:00:00Z"; }),
                          With(2, [](Record& r) { r.backend_version = "1"; })},
                         kHere);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records.back().median_us, 1);
}

}  // namespace
}  // namespace lz::perfdb
