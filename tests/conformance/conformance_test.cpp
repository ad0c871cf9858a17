// Every kernel of the registry against the FP64 reference, on every case of its operation that it admits.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/conformance/summary.h"
#include "verify/numerics.h"
#include "verify/run.h"

namespace lz::verify {
namespace {

const Summary& g_summary = Summary::Get();

std::vector<std::string> KernelNames() {
  std::vector<std::string> names;
  for (const KernelEntry* k : NativeKernels(Engine::Get())) names.push_back(k->operation + "/" + k->id);
  return names;
}
class KernelConformance : public testing::TestWithParam<std::string> {};

TEST_P(KernelConformance, AgreesWithTheReference) {
  Engine& engine = Engine::Get();
  const std::string& name = GetParam();
  const std::string operation = name.substr(0, name.find('/'));
  const KernelEntry* kernel = engine.selector().registry().FindKernel(operation, name.substr(name.find('/') + 1));
  ASSERT_NE(kernel, nullptr);
  EXPECT_TRUE(kernel->spec.numerics.empty() || FindNumerics(kernel->spec.numerics)) << kernel->spec.numerics;
  Summary::Kernel& counts = Summary::Get().kernels[name];
  const auto start = std::chrono::steady_clock::now();
  std::string last_refusal;
  for (const CaseLine& line : CasesOf(*kernel->op)) {
    if (line.refuses()) continue;
    auto c = ParseCase(*kernel->op, line.text);
    ASSERT_TRUE(c.ok()) << line.Where() << "\n" << c.status().Text();
    const CaseResult result = RunCase(engine, *c, *kernel);
    if (result.verdict == Verdict::kNotAdmitted) {
      ++counts.refused;
      last_refusal = result.text;
      continue;
    }
    ++counts.admitted;
    counts.copied += result.copied;
    for (const OutputReport& r : result.outputs) {
      if (r.bound > 0) counts.worst = std::max(counts.worst, r.error / r.bound);
    }
    if (result.verdict == Verdict::kPassed) continue;
    ++counts.failed;
    ADD_FAILURE() << kernel->id << " (" << operation << "), " << line.Where() << "\n  " << result.text;
  }
  counts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Summary::Get().pairs += counts.admitted;
  const bool can_run = kernel->availability.installed && [&] {  // its device rows hold here
    for (const Row& row : kernel->rows) {
      if (!row.field_name.starts_with("device.") || row.predicate >= 0) continue;
      const int64_t fact = HostCpu().facts[kernel->op->fields()[row.field].slot];
      if (!Holds(row.rel, fact, row.operand, row.set)) return false;
    }
    return true;
  }();
  if (!can_run && counts.admitted == 0) GTEST_SKIP() << kernel->id << " does not run on this machine";
  EXPECT_GT(counts.admitted, 0u) << "no case admits " << kernel->id << " (" << operation
                                 << "); the last refusal: " << last_refusal;
}
INSTANTIATE_TEST_SUITE_P(All, KernelConformance, testing::ValuesIn(KernelNames()),
                         [](const auto& info) { return TestName(info.param); });

class OperationConformance : public testing::TestWithParam<std::string> {
 protected:
  const Operation& op() const { return *Engine::Get().Find(GetParam()); }
};

TEST_P(OperationConformance, RefusesWhatItMust) {
  for (const CaseLine& line : CasesOf(op())) {
    if (!line.refuses()) continue;
    ++Summary::Get().refusals;
    auto c = ParseCase(op(), line.text);
    if (!c.ok()) {
      const std::string field = line.text.substr(7, line.text.find(':') - 7);
      EXPECT_TRUE(IsAbout(c.status(), field)) << line.Where() << "\n  " << c.status().Text();
      continue;
    }
    const CaseResult result = RunRefusal(Engine::Get(), *c);
    EXPECT_EQ(result.verdict, Verdict::kPassed) << line.Where() << "\n  " << result.text;
  }
}

// The cases exist, and each is served by some kernel.
TEST_P(OperationConformance, EveryCaseIsServed) {
  EXPECT_FALSE(CasesOf(op()).empty()) << "no tests/ops/**.cases for " << GetParam();
  for (const CaseLine& line : CasesOf(op())) {
    if (line.refuses()) continue;
    auto c = ParseCase(op(), line.text);
    ASSERT_TRUE(c.ok()) << line.Where() << "\n" << c.status().Text();
    Request r = c->MakeRequest();
    Status prepared = Engine::Get().Bind(r);
    ASSERT_TRUE(prepared.ok()) << line.Where() << "\n  " << prepared.Text();
    auto plan = Engine::Get().Select(r);
    EXPECT_TRUE(plan.ok()) << line.Where() << "\n  " << plan.status().Text();
  }
}

// The same values with all axes reversed in memory: references must not notice where elements lie.
OwnedTensor Reversed(OwnedTensor& from) {
  if (!from.given()) return {};
  std::vector<int64_t> strides;
  int64_t stride = 1;
  for (int64_t size : from.shape()) {
    strides.push_back(stride);
    stride *= std::max<int64_t>(1, size);
  }
  OwnedTensor to(from.dtype(), from.shape(), strides, 1);
  const size_t item = size_t(ByteSize(from.dtype()));
  const lz_tensor a = from.tensor(), b = to.tensor();
  from.ForEach([&](int64_t flat, int64_t at) {
    std::memcpy(static_cast<char*>(b.data) + to.ElementOffset(flat) * int64_t(item),
                static_cast<char*>(a.data) + at * int64_t(item), item);
  });
  return to;
}

TEST_P(OperationConformance, ReferenceIgnoresStrides) {
  for (const CaseLine& line : CasesOf(op())) {
    if (line.refuses()) continue;
    auto c = ParseCase(op(), line.text);
    ASSERT_TRUE(c.ok()) << line.Where();
    Request r = c->MakeRequest();
    ASSERT_TRUE(Engine::Get().Bind(r).ok()) << line.Where();
    auto expected = Expected::Of(r);
    Case other = *c;
    for (OwnedTensor& t : other.tensors) t = Reversed(t);
    Request q = other.MakeRequest();
    ASSERT_TRUE(Engine::Get().Bind(q).ok()) << line.Where();
    auto again = Expected::Of(q);
    ASSERT_EQ(expected.ok(), again.ok()) << line.Where();
    if (!expected.ok()) continue;
    const std::string difference = expected->DifferenceFrom(*again);
    EXPECT_EQ(difference, "") << line.Where();
  }
}
INSTANTIATE_TEST_SUITE_P(All, OperationConformance, testing::ValuesIn(OperationNames()),
                         [](const auto& info) { return TestName(info.param); });

TEST(CaseFiles, BelongToOperations) {
  for (const auto& [name, lines] : AllCases()) {
    EXPECT_NE(Engine::Get().Find(name), nullptr) << "'" << name << "': " << lines.front().file;
  }
}

}  // namespace
}  // namespace lz::verify
