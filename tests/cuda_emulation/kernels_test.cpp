// Own CUDA kernels without a device: each agrees with FP64 on the conformance cases that it admits, as C++ of the host.
// And the emulation shows the faults that it is there for.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "tests/conformance/case_files.h"
#include "tests/cuda_emulation/host_rows.h"
#include "tests/cuda_emulation/planted.h"
#include "verify/run.h"

namespace lz {
namespace {

class EmulatedCuda : public testing::TestWithParam<size_t> {};
TEST_P(EmulatedCuda, AgreesWithTheReference) {
  RegisterOnce();
  Engine& engine = Engine::Get();
  const KernelSpec& spec = HostRows()[GetParam()];
  const KernelEntry* kernel = engine.selector().registry().FindKernel(spec.operation, spec.id);
  ASSERT_NE(kernel, nullptr);
  int admitted = 0;
  std::string refusal;
  for (const verify::CaseLine& line : verify::CasesOf(*kernel->op)) {
    if (line.refuses()) continue;
    auto c = verify::ParseCase(*kernel->op, line.text);
    ASSERT_TRUE(c.ok()) << line.Where() << "\n" << c.status().Text();
    // Values that a launch must refuse: the host does not see those of a device.
    Request request = c->MakeRequest();
    if (!engine.Bind(request).ok() || !verify::ReferenceAccepts(request).ok()) continue;
    const verify::CaseResult result = verify::RunCase(engine, *c, *kernel);
    if (result.verdict == verify::Verdict::kNotAdmitted) {
      refusal = result.text;
      continue;
    }
    ++admitted;
    EXPECT_EQ(result.verdict, verify::Verdict::kPassed) << line.Where() << "\n  " << result.text;
  }
  EXPECT_GT(admitted, 0) << "no case is admitted; the last refusal: " << refusal;
}
INSTANTIATE_TEST_SUITE_P(All, EmulatedCuda, testing::Range(size_t{0}, HostRows().size()), [](const auto& info) {
  std::string name(HostRows()[info.param].id);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name + "_" + std::to_string(info.param);
});

using planted::Fault;

// How many of 8 sums are wrong.
int WrongSums(Fault fault, int32_t (*sum)(Fault, const int32_t*, int32_t*) = &planted::Sum) {
  std::vector<int32_t> x(8 * 512), out(8, -1), want(8);
  std::iota(x.begin(), x.end(), 1);
  for (size_t b = 0; b < 8; ++b)
    want[b] = std::accumulate(x.begin() + long(b * 512), x.begin() + long(b * 512 + 512), 0);
  EXPECT_EQ(sum(fault, x.data(), out.data()), 0);
  int wrong = 0;
  for (size_t b = 0; b < 8; ++b) wrong += out[b] != want[b];
  return wrong;
}

TEST(EmulationOfCuda, ShowsPlantedFaults) {
  EXPECT_EQ(WrongSums(Fault::kNone), 0);
  for (const Fault fault : {Fault::kNoBarrierAfterWrite, Fault::kNoBarrierBeforeReuse, Fault::kShuffleBeyondMask,
                            Fault::kUnwrittenShared, Fault::kNoWaitForCopy}) {
    EXPECT_GT(WrongSums(fault), 0) << "fault " << int(fault);
  }
}

TEST(EmulationOfCuda, ShowsPlantedFaultsOfClusters) {
  EXPECT_EQ(WrongSums(Fault::kNone, &planted::SumInClusters), 0);
  for (const Fault fault : {Fault::kNoClusterBarrier, Fault::kBlockEndsEarly}) {
    int wrong = 0;
    for (int run = 0; run < 10; ++run) wrong += WrongSums(fault, &planted::SumInClusters);
    EXPECT_GT(wrong, 0) << "fault " << int(fault);
  }
}

TEST(EmulationOfCuda, ShowsPlantedFaultsOfPhases) {
  for (int run = 0; run < 10; ++run) EXPECT_EQ(WrongSums(Fault::kNone, &planted::SumInPhases), 0);
  for (const Fault fault : {Fault::kNoWaitForPhase, Fault::kFreedTooEarly, Fault::kArriveTooEarly}) {
    int wrong = 0;
    for (int run = 0; run < 300 && wrong == 0; ++run) wrong += WrongSums(fault, &planted::SumInPhases);
    EXPECT_GT(wrong, 0) << "fault " << int(fault);
  }
}

TEST(EmulationOfCuda, ShowsPlantedFaultsOfProducts) {
  EXPECT_EQ(planted::WrongProducts(Fault::kNone), 0);
  EXPECT_GT(planted::WrongProducts(Fault::kNoWaitForProduct), 0);
  EXPECT_GT(planted::WrongProducts(Fault::kSpoiledProduct), 0);
}

TEST(EmulationOfCuda, RefusesLaunchesBeyondADevice) {
  EXPECT_NE(planted::LaunchTooLarge(), 0);
  EXPECT_EQ(WrongSums(Fault::kNone), 0) << "an error is its launch's alone";
}

}  // namespace
}  // namespace lz
