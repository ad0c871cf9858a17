// A selector with kernels of a test next to those of the library, for norm.rms.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/selector.h"
#include "verify/case.h"

namespace lz {

inline int g_launched = 0;
inline int32_t Works(const lz_kernel_args*) {
  ++g_launched;
  return 0;
}
inline int32_t Fails(const lz_kernel_args*) { return 7; }

inline constexpr std::array<std::string_view, 1> kWeight = {"weight"};

class SelectorTest : public testing::Test {
 protected:
  // Kernels a.k, b.k, ... beside those that the library has for norm.rms (the SIMD kernel's priority is 80).
  void Register(std::vector<KernelSpec> specs) {
    for (KernelSpec& s : specs) {
      s.operation = "norm.rms";
      s.dtypes = kFloats;
      if (s.accepts.empty()) s.accepts = kWeight;
      if (!s.launch) s.launch = &Works;
      const Registry::Registration one{&s, {}, "adapter of " + std::string(s.id)};
      Status status = selector.registry().Register({&one, 1});
      ASSERT_TRUE(status.ok()) << status.Text();
    }
  }
  void Configure(const char* json) {
    Status status = selector.policies().Configure(json);
    ASSERT_TRUE(status.ok()) << status.Text();
    selector.Invalidate(EpochKind::kPolicy);
  }
  void Measure(const std::map<std::string, Measurement>& times) {
    selector.set_measurements([times](const KernelEntry& k, const BoundCall&) -> std::optional<Measurement> {
      const auto at = times.find(k.id);
      if (at == times.end()) return std::nullopt;
      return at->second;
    });
    selector.Invalidate(EpochKind::kPerf);
  }
  SelectionReport Explain(const char* line = "input=f32[2,64] weight=f32[64]", uint32_t flags = 0) {
    parsed.push_back(std::make_unique<verify::Case>(std::move(*verify::ParseCase(op, line))));
    Request r = parsed.back()->MakeRequest();
    r.flags = flags;
    EXPECT_TRUE(selector.Bind(r).ok());
    auto report = selector.Explain(r);
    EXPECT_TRUE(report.ok()) << report.status().Text();
    return std::move(*report);
  }
  static std::string Winner(const SelectionReport& report) {
    return report.winner < 0 ? "" : report.candidates[size_t(report.winner)].kernel->id;
  }
  std::string Winner() { return Winner(Explain()); }
  static const Candidate& Of(const SelectionReport& report, std::string_view id) {
    for (const Candidate& c : report.candidates) {
      if (c.kernel->id == id) return c;
    }
    ADD_FAILURE() << "no candidate " << id;
    return report.candidates[0];
  }
  static double Term(const SelectionReport& report, std::string_view id, std::string_view term) {
    for (const lz::Term& t : Of(report, id).terms) {
      if (t.name == term) return t.value;
    }
    return std::nan("");
  }
  static bool Has(const SelectionReport& report, std::string_view id, ReasonCode code) {
    for (const Reason& r : Of(report, id).reasons) {
      if (r.code == code) return true;
    }
    return false;
  }
  static bool Admissible(const SelectionReport& report, std::string_view id) { return Of(report, id).admissible(); }

  Selector selector;
  const Operation& op = *selector.registry().Find("rms_norm");
  std::vector<std::unique_ptr<verify::Case>> parsed;
};

}  // namespace lz
