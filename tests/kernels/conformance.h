// One kernel on the conformance cases of its operation, for the kernel's own test.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/conformance/case_files.h"
#include "verify/run.h"

namespace lz::verify {

// The kernel is registered, and agrees with the FP64 reference on every case that its rows admit; some case must be.
inline void ExpectConforms(std::string_view operation, std::string_view id) {
  Engine& engine = Engine::Get();
  const KernelEntry* kernel = engine.selector().registry().FindKernel(operation, id);
  ASSERT_NE(kernel, nullptr) << id << " is not registered for " << operation;
  int admitted = 0;
  std::string refusal;
  for (const CaseLine& line : CasesOf(*kernel->op)) {
    if (line.refuses()) continue;
    auto c = ParseCase(*kernel->op, line.text);
    ASSERT_TRUE(c.ok()) << line.Where() << "\n" << c.status().Text();
    const CaseResult result = RunCase(engine, *c, *kernel);
    if (result.verdict == Verdict::kNotAdmitted) {
      refusal = result.text;
      continue;
    }
    ++admitted;
    EXPECT_EQ(result.verdict, Verdict::kPassed) << line.Where() << "\n  " << result.text;
  }
  EXPECT_GT(admitted, 0) << "no case is admitted; the last refusal: " << refusal;
}

}  // namespace lz::verify
