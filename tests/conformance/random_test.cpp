// Random calls of every operation, valid and broken, drawn from its contract: every kernel that admits one agrees with
// the FP64 reference, and a broken one is refused with a complete error. The fuzz target of each operation: under
// sanitizers the same test shows that no call reads or writes outside its memory.
//   LZ_FUZZ_EXECUTIONS=100000   calls per operation (default 2,000)      LZ_FUZZ_SEED=7   another sequence
#include <gtest/gtest.h>

#include "pipeline/filter.h"
#include "tests/conformance/summary.h"
#include "verify/fill.h"
#include "verify/random.h"
#include "verify/run.h"

namespace lz::verify {
namespace {

const Summary& g_summary = Summary::Get();

constexpr size_t kReported = 5;  // failures per operation that are printed

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

class RandomCall : public testing::TestWithParam<std::string> {
 protected:
  const Operation& op() const { return *Engine::Get().Find(GetParam()); }
  Summary::Random& counts() const { return Summary::Get().random[GetParam()]; }
  void Fail(const std::string& line, const std::string& text) {
    if (counts().failed++ < kReported) ADD_FAILURE() << GetParam() << ": " << line << "\n  " << text;
  }

  // A copy: each run changes the policy, which replaces the operation's state.
  static std::vector<const KernelEntry*> KernelsOf(Request& r, size_t variant) {
    const Reclaimer::Guard guard;
    KeepCurrent(r);
    const auto& kernels = r.state->kernels[variant];
    return {kernels.begin(), kernels.end()};
  }

  void RunValid(const std::string& line) {
    if (line.empty()) {
      ++counts().unbound;
      return;
    }
    auto c = ParseCase(op(), line);
    if (!c.ok()) return Fail(line, c.status().Text());
    Request r = c->MakeRequest();
    if (Status status = Engine::Get().Bind(r); !status.ok()) return Fail(line, status.Text());
    ++counts().calls;
    const int variant = VariantOf(r);
    if (variant < 0) return;
    std::optional<Result<Expected>> expected;
    for (const KernelEntry* kernel : KernelsOf(r, size_t(variant))) {
      if (kernel->spec.call != CallKind::kNative || !kernel->spec.launch || kernel->id.starts_with("planted."))
        continue;
      Case own = *c;
      const CaseResult result = RunCase(Engine::Get(), own, *kernel, &expected);
      counts().launched += result.verdict != Verdict::kNotAdmitted;
      if (result.verdict == Verdict::kFailed) Fail(line, kernel->id + ": " + result.text);
    }
  }

  void RunBroken(const std::string& line) {
    auto c = ParseCase(op(), line, Fills::kIntegers);
    if (!c.ok()) return Fail(line, c.status().Text());
    Request r = c->MakeRequest();
    const Status status = Engine::Get().Bind(r);
    if (status.ok()) return Fail(line, "a broken call is bound");
    ++counts().broken;
    const auto& parts = status.parts();
    const bool named = std::any_of(op().contract().params.begin(), op().contract().params.end(),
                                   [&](const Param& p) { return IsAbout(status, p.name); });
    if (!named || parts.wanted.empty() || parts.got.empty()) Fail(line, "not a complete error: " + status.Text());
  }
};

TEST_P(RandomCall, AgreesWithTheReferenceOrIsRefused) {
  const uint64_t executions = FromEnvironment("LZ_FUZZ_EXECUTIONS", 2000), first = FromEnvironment("LZ_FUZZ_SEED", 1);
  RandomCalls calls(op(), HashText(GetParam()) + first * 0x9e3779b97f4a7c15u);
  for (uint64_t i = 0; i < executions; ++i) {
    if (i % 4 == 3) {
      if (const std::string line = calls.Broken(); !line.empty()) RunBroken(line);
    } else {
      RunValid(calls.Valid());
    }
  }
  EXPECT_GT(counts().launched, executions / 20) << "hardly any call is valid: what the generator lacks";
  EXPECT_EQ(counts().failed, 0u);
}
INSTANTIATE_TEST_SUITE_P(All, RandomCall, testing::ValuesIn(OperationNames()),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace lz::verify
