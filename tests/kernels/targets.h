// Tests that run once for each of Highway's instruction sets that this machine has.
//   class HwyGemm : public OnEachTarget {};
//   INSTANTIATE_TEST_SUITE_P(Targets, HwyGemm, AllTargets(), NameOfTarget);
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "hwy/targets.h"

namespace lz::testing {

class OnEachTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().DeInit();
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
};

inline auto AllTargets() { return ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()); }
inline std::string NameOfTarget(const ::testing::TestParamInfo<int64_t>& info) { return hwy::TargetName(info.param); }

}  // namespace lz::testing
