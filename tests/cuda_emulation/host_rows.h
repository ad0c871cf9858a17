// The own CUDA kernels of the library, registered as kernels of the host.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "cuda_emulation_table.h"
#include "engine/engine.h"
#include "verify/run.h"

namespace lz {

// The rows of the sources, as kernels of the host: what they require of a device is left out.
inline const std::vector<KernelSpec>& HostRows() {
  static std::deque<std::vector<Constraint>> kept;
  static const auto rows = [] {
    std::vector<KernelSpec> all;
    for (const KernelFamily* family : kEmulatedTable) {
      for (KernelSpec spec : *family) {
        auto& constraints = kept.emplace_back();
        for (const Constraint& c : spec.constraints) {
          if (!c.field.starts_with("device.") && !c.fact.starts_with("device.")) constraints.push_back(c);
        }
        spec.constraints = constraints;
        spec.platform = Platform::kCpu;
        all.push_back(spec);
      }
    }
    return all;
  }();
  return rows;
}

inline void RegisterOnce() {
  static const std::string refused = [] {
    std::vector<Registry::Registration> registrations;
    for (const KernelSpec& spec : HostRows()) registrations.push_back({&spec, {}, {}});
    const auto status = Engine::Get().selector().registry().Register(registrations);
    return status.ok() ? std::string() : status.Text();
  }();
  ASSERT_EQ(refused, "");
}

// Runs a call, written as a conformance case, with one kernel, and compares its results with FP64; `how` is for
// messages.
inline void CheckOnce(const char* operation, const std::string& id, const std::string& call, const char* how = "") {
  RegisterOnce();
  Engine& engine = Engine::Get();
  const KernelEntry* kernel = engine.selector().registry().FindKernel(operation, id);
  ASSERT_NE(kernel, nullptr) << id;
  auto c = verify::ParseCase(*kernel->op, call);
  ASSERT_TRUE(c.ok()) << call << "\n" << c.status().Text();
  const verify::CaseResult result = verify::RunCase(engine, *c, *kernel);
  EXPECT_EQ(result.verdict, verify::Verdict::kPassed) << call << how << "\n" << result.text;
}

}  // namespace lz
