// A selector of its own with test kernels beside the library's, and calls written as conformance cases.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/selector.h"
#include "verify/case.h"

namespace lz {

class SelectorFixture : public testing::Test {
 protected:
  void Register(KernelSpec spec) {
    if (spec.dtypes == 0) spec.dtypes = kFloats;
    if (spec.accepts.empty()) spec.accepts = kAcceptsAll;
    const Registry::Registration one{&spec, {}, {}};
    Status status = selector.registry().Register({&one, 1});
    ASSERT_TRUE(status.ok()) << status.Text();
  }
  void Configure(const std::string& json) {
    Status status = selector.policies().Configure(json);
    ASSERT_TRUE(status.ok()) << status.Text();
    selector.Invalidate(EpochKind::kPolicy);
  }

  // A call with memory for its outputs.
  struct Call {
    verify::Case parsed;
    Request r;
    std::vector<verify::OwnedTensor> outputs;
  };
  Call& MakeCall(const char* name, const std::string& line, int32_t layout = 0) {
    const Operation& op = *selector.registry().Find(name);
    auto parsed = verify::ParseCase(op, line);
    EXPECT_TRUE(parsed.ok()) << parsed.status().Text();
    calls.push_back(Call{std::move(*parsed), Request(op), {}});
    Call& c = calls.back();
    c.r = c.parsed.MakeRequest();
    c.r.layout = layout;
    return c;
  }
  Status Prepare(Call& c) {
    LZ_RETURN_IF_ERROR(selector.Bind(c.r));
    for (size_t o = 0; o < c.r.op->num_outputs(); ++o) {
      const OutputShape& shape = c.r.outputs[o];
      c.outputs.push_back(
          shape.ndim < 0 ? verify::OwnedTensor()
                         : verify::OwnedTensor::RowMajor(shape.dtype, {shape.physical, shape.physical + shape.ndim}));
    }
    for (size_t o = 0; o < c.outputs.size(); ++o) {
      if (c.outputs[o].given()) BindOutput(c.r, o, c.outputs[o].data());
    }
    return {};
  }
  Result<const Plan*> Run(Call& c) {
    LZ_RETURN_IF_ERROR(Prepare(c));
    auto plan = selector.Select(c.r);
    if (!plan.ok()) return plan;
    LZ_RETURN_IF_ERROR(selector.Run(**plan, c.r));
    return plan;
  }
  SelectionReport Explain(Call& c) {
    EXPECT_TRUE(selector.Bind(c.r).ok());
    auto report = selector.Explain(c.r);
    EXPECT_TRUE(report.ok()) << report.status().Text();
    return std::move(*report);
  }
  static const Candidate& Of(const SelectionReport& report, std::string_view id) {
    for (const Candidate& c : report.candidates) {
      if (c.kernel->id == id) return c;
    }
    ADD_FAILURE() << "no candidate " << id;
    return report.candidates[0];
  }
  static bool Has(const Candidate& c, ReasonCode code) {
    return std::ranges::any_of(c.reasons, [&](const Reason& r) { return r.code == code; });
  }

  Selector selector;
  std::deque<Call> calls;
};

}  // namespace lz
