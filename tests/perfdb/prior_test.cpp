// Measured priors: the nearest measured call answers for a whole class of calls, and nothing that was measured
// elsewhere.
#include "perfdb/prior.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "base/reclaimer.h"
#include "perfdb/device_id.h"
#include "test_paths.h"

namespace lz::perfdb {
namespace {

constexpr std::string_view kHere = "AMD EPYC, AVX-512, L1d 48 KiB, 2 cores";

Record RowOf(int64_t rows, int64_t hidden, double us) {
  Record r;
  r.kernel_id = "hwy.norm.rms";
  r.operation = "norm.rms";
  r.device_id = kHere;
  r.dtype = "float32";
  r.axes = {{"...", rows}, {"hidden", hidden}};
  r.median_us = r.p95_us = us;
  r.samples = 10;
  r.kernel_version = "1";
  return r;
}

class PriorTest : public testing::Test {
 protected:
  Registry registry;
  const Operation& op = *registry.Find("rms_norm");
  const KernelEntry& kernel = *registry.FindKernel("norm.rms", "hwy.norm.rms");

  Prior Make(std::vector<std::vector<Record>> groups, std::string_view device = kHere) {
    return Prior(registry, groups, device);
  }
  double At(const Prior& prior, int64_t rows, int64_t hidden, DType dtype = DType::kF32) {
    const int64_t axes[] = {rows, hidden};
    const auto time = prior.Find(kernel, dtype, axes, {});
    return time ? time->median_us : 0;
  }
};

// The engine looks at the beginning of a carried file alone to see whether it is about this kind of machine.
TEST_F(PriorTest, EveryCarriedFileHoldsOneMachinesRecordsOfKernelsThatExist) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LZ_SOURCE_DIR "/devices/priors")) {
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const auto records = ReadRecords(text.str(), entry.path().string());
    ASSERT_TRUE(records.ok()) << records.status().Text();
    std::set<std::string> devices;
    for (const Record& r : *records) {
      devices.insert(r.device_id);
      if (!r.kernel_id.starts_with("torch.") && !r.kernel_id.starts_with("cuda.")) {  // of other libraries
        EXPECT_NE(registry.FindKernel(r.operation, r.kernel_id), nullptr) << r.kernel_id << " in " << entry.path();
      }
    }
    ASSERT_EQ(devices.size(), 1u) << entry.path();
    const std::string head = text.str().substr(0, 1024);
    EXPECT_NE(head.find("\"sm_version\": " + std::to_string(records->front().sm_version)), std::string::npos);
    EXPECT_NE(text.str().substr(0, 1024).find("\"device_id\": \"" + *devices.begin()), std::string::npos);
    ++files;
  }
  EXPECT_GE(files, 2u);
}

TEST_F(PriorTest, OneQueryAndOneRowOfAProductAreRegimesOfTheirOwn) {
  const Operation& linear = *registry.Find("linear");
  const KernelEntry& product = *registry.FindKernel("mlp.linear", "hwy.mlp.linear.gemm");
  const auto time_at = [&](std::vector<int64_t> measured, int64_t rows) {
    std::vector<Record> records;
    for (int64_t m : measured) {
      Record r = RowOf(m, 64, double(m));
      r.operation = "mlp.linear", r.kernel_id = product.id;
      r.kernel_version = std::to_string(product.spec.version);
      r.axes.clear();
      for (const std::string& axis : linear.axes()) r.axes[axis] = axis == "..." ? m : 64;
      records.push_back(r);
    }
    std::vector<int64_t> axes;
    for (const std::string& axis : linear.axes()) axes.push_back(axis == "..." ? rows : 64);
    const Prior prior = Make({records});
    const auto time = prior.Find(product, DType::kF32, axes.data(), {});
    return time ? time->median_us : 0;
  };
  EXPECT_EQ(time_at({1}, 1), 1);
  EXPECT_EQ(time_at({1}, 2), 0);  // one row says nothing of two
  EXPECT_EQ(time_at({1}, 4), 0);
  EXPECT_EQ(time_at({2}, 1), 0);  // nor the other way round
  EXPECT_EQ(time_at({4}, 1), 0);
  EXPECT_EQ(time_at({4}, 2), 4);
  EXPECT_EQ(time_at({1, 4}, 1), 1);
  EXPECT_EQ(time_at({1, 4}, 2), 4);
  EXPECT_EQ(time_at({1, 64}, 2), 0);  // out of the reach of 64
  EXPECT_EQ(time_at({1, 64}, 15), 0);
  EXPECT_EQ(time_at({1, 64}, 16), 64);
  EXPECT_EQ(time_at({1, 64, 256}, 200), 256);
  EXPECT_EQ(time_at({1, 64, 256}, 100), 64);
  EXPECT_EQ(time_at({1, 64}, 257), 0);
}

TEST_F(PriorTest, AxesAreInTheOrderThatTheseTestsTake) {
  EXPECT_EQ(op.axes(), (std::vector<std::string>{"...", "hidden"}));
}

TEST_F(PriorTest, TheNearestMeasuredCallAnswers) {
  const Prior prior = Make({{RowOf(1, 64, 1), RowOf(1, 4096, 2), RowOf(256, 4096, 30)}});
  EXPECT_EQ(prior.num_records(), 3u);
  EXPECT_EQ(At(prior, 1, 64), 1);
  EXPECT_EQ(At(prior, 1, 511), 1);  // the middle of 64 and 4096 is 512
  EXPECT_EQ(At(prior, 1, 512), 2);
  EXPECT_EQ(At(prior, 15, 4096), 2);  // that of 1 and 256 is 16
  EXPECT_EQ(At(prior, 16, 4096), 30);
}

TEST_F(PriorTest, FarCallsHaveNoTime) {
  const Prior prior = Make({{RowOf(1, 64, 1), RowOf(1, 4096, 2)}});
  EXPECT_EQ(At(prior, 1, 16), 1);
  EXPECT_EQ(At(prior, 1, 15), 0);
  EXPECT_EQ(At(prior, 4, 64), 1);
  EXPECT_EQ(At(prior, 5, 64), 0);
  EXPECT_EQ(At(prior, 1, 4 * 4096), 2);
  EXPECT_EQ(At(prior, 1, 4 * 4096 + 1), 0);
  EXPECT_EQ(At(prior, 1, 64, DType::kBF16), 0);
}

TEST_F(PriorTest, ANeighbourIsTrustedLess) {
  const Prior prior = Make({{RowOf(1, 64, 1), RowOf(8, 512, 2)}});
  const auto confidence = [&](int64_t rows, int64_t hidden) {
    const int64_t axes[] = {rows, hidden};
    const auto time = prior.Find(kernel, DType::kF32, axes, {});
    return time ? time->confidence : 0;
  };
  EXPECT_EQ(confidence(1, 64), 1);
  EXPECT_EQ(confidence(1, 512), 0.5);  // three doublings from either
}

TEST_F(PriorTest, RecordsOfAnotherProtocolDoNotCount) {
  Record other = RowOf(1, 64, 1);
  other.protocol = kProtocol + 1;
  const Prior prior = Make({{other}});
  EXPECT_EQ(prior.num_records(), 0u);
  EXPECT_EQ(At(prior, 1, 64), 0);
  EXPECT_EQ(At(Make({{RowOf(1, 64, 1)}}), 1, 64), 1);
}

TEST_F(PriorTest, ColdTimesDecideInWhateverOrderTheyCome) {
  Record warm = RowOf(1, 64, 1), cold = RowOf(1, 64, 50);
  cold.cache_state = "cold";
  EXPECT_EQ(At(Make({{warm, cold}}), 1, 64), 50);
  EXPECT_EQ(At(Make({{cold, warm}}), 1, 64), 50);
  EXPECT_EQ(Make({{warm, cold}}).num_records(), 2u);
  Record elsewhere = RowOf(1, 4096, 60);
  elsewhere.cache_state = "cold";
  EXPECT_EQ(At(Make({{warm, elsewhere}}), 1, 64), 1);  // of this call the warm time is all there is
}

TEST_F(PriorTest, VersionsAreReleasesWithoutPatchAndBuild) {
  EXPECT_TRUE(IsSameVersion("2.13.0+cpu", "2.13.1"));
  EXPECT_TRUE(IsSameVersion("2.13", "2.13.0"));
  EXPECT_FALSE(IsSameVersion("2.13.0", "2.11.0"));
  EXPECT_FALSE(IsSameVersion("2.1", "2.13"));
  EXPECT_FALSE(IsSameVersion("2.14.0.dev20260131", "2.14.0"));
  EXPECT_TRUE(IsSameVersion("2.14.0.dev20260131+cpu", "2.14.0.dev20260131+cpu"));
  EXPECT_FALSE(IsSameVersion("libx.so of 10 bytes", "libx.so of 12 bytes"));
  EXPECT_FALSE(IsSameVersion("", "2.13.0"));
  EXPECT_TRUE(IsSameVersion("0.6.13+prebuilt.3f21ab90", "0.6.13+cu130+prebuilt.3f21ab90"));
  EXPECT_FALSE(IsSameVersion("0.6.13+prebuilt.3f21ab90", "0.6.13+prebuilt.00000000"));
  EXPECT_FALSE(IsSameVersion("0.6.13+prebuilt.3f21ab90", "0.6.13"));
}

TEST_F(PriorTest, ATimeOfAnotherVersionOfItsLibraryIsMarked) {
  KernelEntry of_torch = kernel;
  of_torch.availability.version = "2.11.0+cu130";
  const auto other = [&](std::optional<std::string> backend_version, std::optional<std::string> torch_version) {
    Record r = RowOf(1, 64, 1);
    r.backend = "torch", r.backend_version = std::move(backend_version), r.torch_version = std::move(torch_version);
    const Prior prior = Make({{r}});
    const int64_t axes[] = {1, 64};
    EXPECT_FALSE(prior.Find(kernel, DType::kF32, axes, {})->other_version);  // our own code
    return prior.Find(of_torch, DType::kF32, axes, {})->other_version;
  };
  EXPECT_TRUE(other("2.13.0", std::nullopt));
  EXPECT_FALSE(other("2.11.1", "2.13.0"));
  EXPECT_TRUE(other(std::nullopt, "2.13.0+cpu"));
  EXPECT_FALSE(other(std::nullopt, "2.11.0"));
  EXPECT_TRUE(other(std::nullopt, std::nullopt));  // not known
}

// Each replacing the last, as when measuring goes on.
TEST_F(PriorTest, RecordsThatAreReplacedTakeTheirCutsWithThem) {
  const auto cuts = [&] { return op.state().classifier.num_thresholds(); };
  const int before = cuts();
  std::vector<int> seen;
  size_t heap = 0;
  for (int64_t i = 0; i < 11'000; ++i) {
    if (i == 1000) heap = mallinfo2().uordblks;
    ASSERT_TRUE(
        Make({{RowOf(1, 64 + i, 1), RowOf(1, 4096 + 7 * i, 2), RowOf(100 + i, 4096, 3)}}).AddThresholds(registry).ok());
    seen.push_back(cuts());
  }
  EXPECT_GT(seen.front(), before);
  EXPECT_LE(*std::ranges::max_element(seen), seen.front() + 1);
  EXPECT_LT(mallinfo2().uordblks, heap + (1 << 19));
  EXPECT_LE(Reclaimer::Get().num_waiting(), 2u);  // states that no reader holds are freed
  ASSERT_TRUE(Make({{}}).AddThresholds(registry).ok());
  EXPECT_EQ(cuts(), before);
}

TEST_F(PriorTest, CutsOfPoliciesStay) {
  const Constraint rule{"hidden", Rel::kGe, 777};
  const auto held = registry.AddThresholds(op, {&rule, 1});
  ASSERT_TRUE(held.ok());
  const int with_rule = op.state().classifier.num_thresholds();
  ASSERT_TRUE(Make({{RowOf(1, 64, 1)}}).AddThresholds(registry).ok());
  EXPECT_GT(op.state().classifier.num_thresholds(), with_rule);
  ASSERT_TRUE(Make({{}}).AddThresholds(registry).ok());
  EXPECT_EQ(op.state().classifier.num_thresholds(), with_rule);
}

// Of linear_quantized with one row and a weight of 64 x 64.
Record FormatRow(std::map<std::string, std::string> options, double us) {
  Record r = RowOf(1, 64, us);
  r.kernel_id = "hwy.mlp.linear.quantized.gemv";
  r.operation = "mlp.linear.quantized";
  r.axes = {{"...", 1}, {"k", 64}, {"n", 64}, {"scale_rows", 64}, {"scale_columns", 1}};
  r.options = std::move(options);
  return r;
}

TEST_F(PriorTest, OfTheOptionsThatACallHasTheMostAnswer) {
  const Operation& linear = *registry.Find("linear_quantized");
  const KernelEntry& gemv = *registry.FindKernel("mlp.linear.quantized", "hwy.mlp.linear.quantized.gemv");
  Record plain = FormatRow({{"format", "int8"}}, 1), biased = FormatRow({{"bias", "given"}, {"format", "int8"}}, 2);
  Record other = FormatRow({{"format", "nvfp4"}}, 3);
  for (Record* r : {&plain, &biased, &other}) r->kernel_version = std::to_string(gemv.spec.version);
  const Prior prior = Make({{plain, biased, other}});
  EXPECT_EQ(prior.num_records(), 3u);
  std::vector<int64_t> axes;
  for (const std::string& axis : linear.axes()) axes.push_back(plain.axes.at(axis));
  const auto at = [&](const Prior::Options& options) {
    const auto time = prior.Find(gemv, DType::kF32, axes.data(), options);
    return time ? time->median_us : 0;
  };
  EXPECT_EQ(at({{"format", "int8"}}), 1);
  EXPECT_EQ(at({{"bias", "given"}, {"format", "int8"}}), 2);
  EXPECT_EQ(at({{"bias", "given"}, {"format", "nvfp4"}}), 3);  // a bias alone was not measured with it
  EXPECT_EQ(at({{"format", "mxfp4"}}), 0);
  EXPECT_EQ(at({}), 0);

  ASSERT_TRUE(prior.AddThresholds(registry).ok());
  const int32_t* masks = linear.state().classifier.masks();
  const auto watched = [&](const char* name) {
    const Field& field = linear.fields()[*linear.FindField(name)];
    return (masks[field.slot] & field.mask) == field.mask;
  };
  EXPECT_TRUE(watched("format"));
  EXPECT_TRUE(watched("bias.given"));
}

TEST_F(PriorTest, RowsThatAreNotDenseAreAnOption) {
  Record r = RowOf(1, 64, 1);
  r.options = {{"weight.last_dim_stride1", "false"}};
  const Prior prior = Make({{r}});
  EXPECT_EQ(prior.num_records(), 1u);
  const int64_t axes[] = {1, 64};
  EXPECT_FALSE(prior.Find(kernel, DType::kF32, axes, {}));
  EXPECT_TRUE(prior.Find(kernel, DType::kF32, axes, r.options));
}

TEST_F(PriorTest, ADTypeIsAnOption) {
  Record r = RowOf(1, 64, 1), unknown = RowOf(1, 64, 1);
  r.options = {{"weight.dtype", "float8_e4m3fn"}}, unknown.options = {{"weight.dtype", "float7"}};
  const Prior prior = Make({{r, unknown}});
  EXPECT_EQ(prior.num_records(), 1u);
  const int64_t axes[] = {1, 64};
  EXPECT_FALSE(prior.Find(kernel, DType::kF32, axes, {}));
  EXPECT_TRUE(prior.Find(kernel, DType::kF32, axes, r.options));
  ASSERT_TRUE(prior.AddThresholds(registry).ok());
  const Field& field = op.fields()[*op.FindField("weight.dtype")];
  EXPECT_EQ(op.state().classifier.masks()[field.slot] & field.mask, field.mask);
}

TEST_F(PriorTest, OptionsThatTheContractDoesNotHaveAreOfAnotherVersion) {
  Record options[] = {RowOf(1, 64, 1), RowOf(1, 64, 1), RowOf(1, 64, 1)};
  options[0].options = {{"no_such", "given"}};
  options[1].options = {{"eps", "0.1"}};  // a number is given or not
  options[2].options = {{"weight", "true"}};
  for (const Record& r : options) EXPECT_EQ(Make({{r}}).num_records(), 0u);
}

TEST_F(PriorTest, OnlyThisDeviceAndThisVersionCount) {
  std::vector<Record> others(6, RowOf(1, 64, 1));
  others[0].device_id = "Another CPU, AVX2, L1d 32 KiB, 2 cores";
  others[1].kernel_version = "7";
  others[2].valid = false;
  others[3].execution = "graph";
  others[4].operation = "no.such";
  others[5].axes = {{"hidden", 64}};
  for (const Record& other : others) EXPECT_EQ(At(Make({{other}}), 1, 64), 0);
  Record cores = RowOf(1, 64, 1);
  cores.device_id = "AMD EPYC, AVX-512, L1d 48 KiB, 64 cores";
  const int64_t axes[] = {1, 64};
  const Prior prior = Make({{cores}});
  ASSERT_TRUE(prior.Find(kernel, DType::kF32, axes, {}));
  EXPECT_EQ(prior.Find(kernel, DType::kF32, axes, {})->confidence, 0.5);
}

constexpr const char* kFourCores = "AMD EPYC, AVX-512, L1d 48 KiB, 4 cores";
constexpr const char* kEightCores = "AMD EPYC, AVX-512, L1d 48 KiB, 8 cores";

Record On(std::string_view device, Record r, const char* operation = "norm.rms", const char* kernel = "hwy.norm.rms") {
  r.device_id = device;
  r.operation = operation;
  r.kernel_id = kernel;
  return r;
}

TEST_F(PriorTest, TimesOfASimilarDeviceAreMultipliedByWhatTheSameCallsTakeHere) {
  std::vector<Record> rows = {On(kFourCores, RowOf(1, 64, 3)), On(kFourCores, RowOf(64, 64, 30))};
  for (const int64_t rows_of_both : {1, 2, 4}) {  // another operation, three times as long here
    rows.push_back(On(kHere, RowOf(rows_of_both, 64, 12.0 * double(rows_of_both)), "norm.layer", "hwy.norm.layer"));
    rows.push_back(On(kFourCores, RowOf(rows_of_both, 64, 4.0 * double(rows_of_both)), "norm.layer", "hwy.norm.layer"));
  }
  const Prior prior = Make({rows});
  EXPECT_DOUBLE_EQ(At(prior, 1, 64), 9);
  EXPECT_DOUBLE_EQ(At(prior, 64, 64), 90);
  const int64_t axes[] = {1, 64};
  EXPECT_EQ(prior.Find(kernel, DType::kF32, axes, {})->confidence, 0.5);
  rows.pop_back();
  EXPECT_DOUBLE_EQ(At(Make({rows}), 1, 64), 3) << "two times in common make no factor";
}

TEST_F(PriorTest, TimesOfTwoSimilarDevicesAreNotCompared) {
  // The same call on two devices, by one kernel each: the slower device's kernel would lose for its device's sake.
  std::vector<Record> rows = {On(kFourCores, RowOf(1, 64, 3)), On(kFourCores, RowOf(8, 64, 5)),
                              On(kEightCores, RowOf(1, 64, 1), "norm.rms", "x86.norm.rms"),
                              On(kEightCores, RowOf(64, 64, 2))};
  for (int order = 0; order < 2; ++order) {
    const Prior prior = Make({rows});
    EXPECT_EQ(prior.num_records(), 2u);
    ASSERT_FALSE(prior.MeasuredCalls().empty());
    for (const auto& call : prior.MeasuredCalls()) EXPECT_EQ(call.us.size(), 1u);
    std::ranges::reverse(rows);
  }
  rows.push_back(On(kFourCores, RowOf(64, 64, 7)));
  EXPECT_DOUBLE_EQ(At(Make({rows}), 64, 64), 7) << "the device with the most records";
}

TEST_F(PriorTest, TheFirstGroupThatHasAnOperationHasItAlone) {
  const Prior prior = Make({{RowOf(1, 64, 1)}, {RowOf(1, 64, 5), RowOf(1, 4096, 5)}});
  EXPECT_EQ(At(prior, 1, 64), 1);
  EXPECT_EQ(At(prior, 1, 4096), 0);
}

// What a cached plan rests on: facts of one class get one answer.
TEST_F(PriorTest, AllCallsOfAClassHaveOneAnswer) {
  std::mt19937 random(7);
  std::vector<Record> records;
  for (int i = 0; i < 40; ++i) {
    const int64_t rows = int64_t{1} << random() % 10, hidden = 1 + int64_t(random() % 5000);
    Record r = RowOf(rows, hidden, 1 + i);
    records.push_back(r);
  }
  const Prior prior = Make({records});
  ASSERT_TRUE(prior.AddThresholds(registry).ok());
  const Classifier& classifier = op.state().classifier;
  const size_t slot = op.first_axis_slot();
  std::set<double> answers;
  for (int i = 0; i < 3000; ++i) {
    Facts facts{}, lo, hi;
    facts.v[slot] = 1 + int32_t(random() % 2000);
    facts.v[slot + 1] = 1 + int32_t(random() % 20000);
    classifier.RangeOf(facts, &lo, &hi);
    const double here = At(prior, facts.v[slot], facts.v[slot + 1]);
    answers.insert(here);
    for (int k = 0; k < 4; ++k) {
      const auto within = [&](size_t s) {
        const int64_t first = std::max(lo.v[s], 1), last = std::min<int64_t>(hi.v[s], 40000);
        return k == 0 ? first : k == 1 ? last : first + int64_t(random() % uint64_t(last - first + 1));
      };
      ASSERT_EQ(At(prior, within(slot), within(slot + 1)), here) << facts.v[slot] << " x " << facts.v[slot + 1];
    }
  }
  EXPECT_GT(answers.size(), 10u);
}

// ---- GPUs

constexpr std::string_view kGpu = "NVIDIA H200, sm_90, 132 multiprocessors";

Record GpuRow(int64_t rows, double us, const char* execution) {
  Record r = RowOf(rows, 4096, us);
  r.device_id = kGpu, r.sm_version = 90, r.execution = execution;
  return r;
}

class GpuPriorTest : public PriorTest {
 protected:
  std::optional<PriorTime> TimeAt(const std::vector<std::vector<Record>>& groups, bool in_graph, int64_t rows = 1,
                                  std::string_view device = kGpu, int64_t sm = 90) {
    const int64_t axes[] = {rows, 4096};
    return Prior(registry, groups, device, sm).Find(kernel, DType::kF32, axes, {}, in_graph);
  }
};

TEST_F(GpuPriorTest, ARecordOfOneModeNeverAnswersInTheOther) {
  const std::vector<Record> both = {GpuRow(1, 9, "eager"), GpuRow(1, 2, "graph"), GpuRow(64, 5, "graph")};
  EXPECT_EQ(TimeAt({both}, false)->median_us, 9);
  EXPECT_EQ(TimeAt({both}, true)->median_us, 2);
  EXPECT_EQ(TimeAt({both}, true, 64)->median_us, 5);
  EXPECT_FALSE(TimeAt({both}, false, 64));  // six doublings from the eager one
  EXPECT_FALSE(TimeAt({{both[0]}}, true));
  EXPECT_FALSE(TimeAt({{both[1]}}, false));
}

TEST_F(GpuPriorTest, AnotherGpuOfTheGenerationIsAHint) {
  const std::vector<Record> rows = {GpuRow(1, 9, "eager")};
  EXPECT_EQ(TimeAt({rows}, false)->confidence, 1);
  EXPECT_EQ(TimeAt({rows}, false, 1, "NVIDIA H100 80GB HBM3, sm_90, 132 multiprocessors", 90)->confidence, 0.5);
  EXPECT_FALSE(TimeAt({rows}, false, 1, "NVIDIA A100-SXM4-80GB, sm_80, 108 multiprocessors", 80));
  EXPECT_FALSE(TimeAt({rows}, false, 1, "NVIDIA B200, sm_100, 148 multiprocessors", 100));
  EXPECT_FALSE(TimeAt({rows}, false, 1, kHere, 0));
}

TEST_F(GpuPriorTest, TimesOfTheDeviceItselfComeBeforeThoseOfSimilarOnes) {
  Record other = GpuRow(1, 1, "eager");
  other.device_id = "NVIDIA H100 PCIe, sm_90, 114 multiprocessors";
  const Record own = GpuRow(1, 9, "eager");
  for (const std::vector<Record>& group : {std::vector{own, other}, std::vector{other, own}}) {
    EXPECT_EQ(TimeAt({group}, false)->median_us, 9);
    EXPECT_EQ(TimeAt({group}, false)->confidence, 1);
  }
}

TEST_F(GpuPriorTest, ACaptureIsAClassOfItsOwn) {
  const auto is_watched = [&] { return op.state().classifier.masks()[kSlotFlags] & kFlagCapturing; };
  const std::vector<std::vector<Record>> groups = {{GpuRow(1, 9, "eager")}};
  ASSERT_TRUE(Prior(registry, groups, kGpu, 90).AddThresholds(registry).ok());
  EXPECT_TRUE(is_watched());
  const Prior cpu = Make({{RowOf(1, 64, 1)}}), gpu(registry, groups, kGpu, 90);
  const Prior* const both[] = {&cpu, &gpu};
  ASSERT_TRUE(Prior::SplitClasses(registry, both).ok());
  EXPECT_TRUE(is_watched());
  const int cuts = op.state().classifier.num_thresholds();
  ASSERT_TRUE(gpu.AddThresholds(registry).ok());
  EXPECT_LT(op.state().classifier.num_thresholds(), cuts);
}

TEST_F(PriorTest, TheSizeOfAPoolSeparatesNoCalls) {
  const Operation& paged = *registry.Find("paged_attention");
  const KernelEntry& own =
      *registry.FindKernel("attention.gqa.decode.block_table", "hwy.attention.gqa.decode.block_table");
  Record r = RowOf(1, 64, 7);
  r.kernel_id = own.id, r.operation = own.operation, r.kernel_version = std::to_string(own.spec.version);
  r.axes = {{"b", 1},    {"h_q", 32},  {"d_qk", 128},      {"blocks", 256},
            {"h_kv", 8}, {"d_v", 128}, {"block_size", 16}, {"max_blocks", 256}};
  const Prior prior = Make({{r}});
  const auto at = [&](int64_t blocks, int64_t max_blocks) {
    r.axes["blocks"] = blocks, r.axes["max_blocks"] = max_blocks;
    std::vector<int64_t> axes;
    for (const std::string& axis : paged.axes()) axes.push_back(r.axes.at(axis));
    const auto time = prior.Find(own, DType::kF32, axes.data(), {});
    return time ? time->confidence : 0;
  };
  EXPECT_EQ(at(256, 256), 1);
  EXPECT_EQ(at(1 << 20, 256), 1);
  EXPECT_EQ(at(1, 256), 1);
  EXPECT_EQ(at(256, 256 * 5), 0);
}

TEST(DeviceId, NamesWhatKernelsSee) {
  Device cpu;
  cpu.model = "AMD EPYC";
  cpu.facts[size_t(DeviceField::kIsa)] = kIsaSse42 | kIsaAvx2;
  cpu.facts[size_t(DeviceField::kL1dBytes)] = 32768;
  cpu.facts[size_t(DeviceField::kNumCores)] = 2;
  EXPECT_EQ(DeviceId(cpu), "AMD EPYC, AVX2, L1d 32 KiB, 2 cores");
  EXPECT_EQ(DeviceType(DeviceId(cpu)), "AMD EPYC, AVX2, L1d 32 KiB");
  cpu.platform = Platform::kCuda;
  cpu.model = "NVIDIA H200", cpu.arch = "sm_90", cpu.facts[size_t(DeviceField::kNumCores)] = 132;
  EXPECT_EQ(DeviceId(cpu), "NVIDIA H200, sm_90, 132 multiprocessors");
}

}  // namespace
}  // namespace lz::perfdb
