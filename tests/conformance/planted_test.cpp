// Deliberately wrong kernels: the harness must catch each fault, and must not flag a correct kernel.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/view.h"
#include "ops/common/sampling_check.h"
#include "ops/mlp/linear.h"
#include "ops/norm/rms.h"
#include "ops/sampling/topk.h"
#include "tests/conformance/summary.h"
#include "verify/run.h"

namespace lz::verify {
namespace {

namespace rms = ops::norm_rms;

// RMSNorm with one switch for each fault.
enum class Fault {
  kNone,
  kTooLarge,        // every element by 1.5 tolerances
  kOneElement,      // only the last element of the last row, by 1.5 tolerances
  kDropsWeight,     // an optional argument is ignored
  kDropsOffset,     // a scalar is ignored
  kIgnoresStrides,  // reads rows as if they were dense
  kTail,            // handles whole groups of eight elements only
  kHidesNan,
  kWritesBehind,  // one byte after the output
  kWritesBefore,
  kWritesInput,
  kWorkspace,      // one byte after the workspace that it asked for
  kSilentFailure,  // returns an error code
};

double ToleranceOf(DType type) { return BoundOf(rms::kContract.tolerance, type); }

template <Fault kFault>
int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[rms::kInput]), w(args->tensors[rms::kWeight]), out(args->tensors[rms::kOutput]);
  const double eps = args->scalars[rms::kEps].value.f;
  const double offset = kFault == Fault::kDropsOffset ? 0 : args->scalars[rms::kWeightOffset].value.f;
  const int64_t hidden = x.size(-1);
  int64_t extent = 1;  // elements from the first to the last: faults stay within the memory
  for (int a = 0; a < x.ndim(); ++a) extent += std::max<int64_t>(0, x.size(a) - 1) * x.stride(a);
  const auto load = [&](int64_t row, int64_t i) {
    const double v = kFault == Fault::kIgnoresStrides ? x.Load((row * hidden + i) % extent) : x.GetRow(row, i);
    return kFault == Fault::kHidesNan && std::isnan(v) ? 0.0 : v;
  };
  for (int64_t row = 0; row < x.rows(); ++row) {
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) sum += load(row, i) * load(row, i);
    const double scale = 1.0 / std::sqrt(sum / double(hidden) + eps);
    const int64_t end = kFault == Fault::kTail ? hidden / 8 * 8 : hidden;
    for (int64_t i = 0; i < end; ++i) {
      const bool weighted = w.given() && kFault != Fault::kDropsWeight;
      double v = load(row, i) * scale * ((weighted ? w.Get({i}) : 1.0) + offset);
      const bool last = row + 1 == x.rows() && i + 1 == hidden;
      const bool moved = kFault == Fault::kTooLarge || (kFault == Fault::kOneElement && last);
      if (moved) v += 1.5 * ToleranceOf(out.dtype()) * (1 + std::fabs(v));
      out.SetRow(row, i, v);
    }
  }
  char* begin = out.data<char>();
  if (kFault == Fault::kWritesBehind) begin[out.numel() * ByteSize(out.dtype())] = 0;
  if (kFault == Fault::kWritesBefore) begin[-1] = 0;
  if (kFault == Fault::kWritesInput && x.numel() > 0) x.data<char>()[0] ^= 1;
  if (kFault == Fault::kWorkspace) static_cast<char*>(args->workspace)[args->workspace_bytes] = 0;
  return kFault == Fault::kSilentFailure;
}
uint64_t Workspace(const lz_kernel_args*) { return 64; }

// Linear that skips the last column of the weight, and one that is a little off relative to the row's maximum.
namespace linear = ops::mlp_linear;
enum class LinearFault { kNone, kLastColumn, kOff, kDropsBias };
template <LinearFault kFault>
int32_t Linear(const lz_kernel_args* args) {
  const View x(args->tensors[linear::kInput]), w(args->tensors[linear::kWeight]), b(args->tensors[linear::kBias]);
  const View out(args->tensors[linear::kOutput]);
  const int64_t k = w.size(1) - (kFault == LinearFault::kLastColumn ? 1 : 0);
  for (int64_t row = 0; row < out.rows(); ++row) {
    double largest = 0;
    for (int64_t n = 0; n < out.size(-1); ++n) {
      double sum = b.given() && kFault != LinearFault::kDropsBias ? b.Get({n}) : 0;
      for (int64_t i = 0; i < k; ++i) sum += x.GetRow(row, i) * w.Get({n, i});
      largest = std::max(largest, std::fabs(sum));
      if (kFault == LinearFault::kOff && n + 1 == out.size(-1)) {
        sum += 1.5 * BoundOf(linear::kContract.tolerance, out.dtype()) * largest;
      }
      out.SetRow(row, n, sum);
    }
  }
  return 0;
}

// Draws the token after the right one, or keeps one token more than k.
template <int64_t kShift, int64_t kMore>
int32_t TopK(const lz_kernel_args* args) {
  const sampling::SampleArguments call(ops::sampling_topk::kContract, *args);
  const View x(call.logits), out(call.token);
  if (!call.draws.Valid()) return LZ_LAUNCH_INVALID_DATA;
  for (int64_t row = 0; row < x.rows(); ++row) {
    std::optional<sampling::Filters> filters = call.FiltersOf(row);
    if (!filters) return LZ_LAUNCH_INVALID_DATA;
    filters->k += kMore;
    const int64_t token = sampling::Row(sampling::ReadRow(x, row), *filters).Draw(call.draws.OfRow(row));
    out.StoreInt(ElementOffset(call.token, row), token < 0 ? token : (token + kShift) % x.size(-1));
  }
  return 0;
}

struct Planted {
  const char* id;
  const char* operation;
  lz_launch_fn launch;
  bool correct = false;
  lz_workspace_fn workspace = nullptr;
};
const auto kPlanted = std::to_array<Planted>({
    {"planted.rms.correct", "norm.rms", &Launch<Fault::kNone>, true, &Workspace},
    {"planted.rms.too_large", "norm.rms", &Launch<Fault::kTooLarge>},
    {"planted.rms.one_element", "norm.rms", &Launch<Fault::kOneElement>},
    {"planted.rms.drops_weight", "norm.rms", &Launch<Fault::kDropsWeight>},
    {"planted.rms.drops_offset", "norm.rms", &Launch<Fault::kDropsOffset>},
    {"planted.rms.ignores_strides", "norm.rms", &Launch<Fault::kIgnoresStrides>},
    {"planted.rms.tail", "norm.rms", &Launch<Fault::kTail>},
    {"planted.rms.hides_nan", "norm.rms", &Launch<Fault::kHidesNan>},
    {"planted.rms.writes_behind", "norm.rms", &Launch<Fault::kWritesBehind>},
    {"planted.rms.writes_before", "norm.rms", &Launch<Fault::kWritesBefore>},
    {"planted.rms.writes_input", "norm.rms", &Launch<Fault::kWritesInput>},
    {"planted.rms.workspace", "norm.rms", &Launch<Fault::kWorkspace>, false, &Workspace},
    {"planted.rms.fails", "norm.rms", &Launch<Fault::kSilentFailure>},
    {"planted.linear.correct", "mlp.linear", &Linear<LinearFault::kNone>, true},
    {"planted.linear.last_column", "mlp.linear", &Linear<LinearFault::kLastColumn>},
    {"planted.linear.off", "mlp.linear", &Linear<LinearFault::kOff>},
    {"planted.linear.drops_bias", "mlp.linear", &Linear<LinearFault::kDropsBias>},
    {"planted.topk.correct", "sampling.topk", &TopK<0, 0>, true},
    {"planted.topk.next_token", "sampling.topk", &TopK<1, 0>},
    {"planted.topk.keeps_more", "sampling.topk", &TopK<0, 1>},
});

KernelSpec SpecOf(const Planted& p) {
  return {.id = p.id,
          .operation = p.operation,
          .dtypes = kFloats,
          .accepts = kAcceptsAll,
          .strides = Strides::kAny,
          .priority = 0,
          .deterministic = true,
          .launch = p.launch,
          .workspace = p.workspace};
}

// Registered on first use: the tests of this process took their lists of kernels before.
Engine& PlantedEngine() {
  static Engine& engine = [&]() -> Engine& {
    std::vector<KernelSpec> specs;
    std::vector<Registry::Registration> all;
    for (const Planted& p : kPlanted) specs.push_back(SpecOf(p));
    for (const KernelSpec& s : specs) all.push_back({&s, {}, {}});
    Status status = Engine::Get().selector().registry().Register(all);
    EXPECT_TRUE(status.ok()) << status.Text();
    return Engine::Get();
  }();
  return engine;
}

class PlantedKernel : public testing::TestWithParam<size_t> {};

TEST_P(PlantedKernel, IsJudgedRightly) {
  Engine& engine = PlantedEngine();
  const Planted& planted = kPlanted[GetParam()];
  const KernelEntry* kernel = engine.selector().registry().FindKernel(planted.operation, planted.id);
  ASSERT_NE(kernel, nullptr);
  int admitted = 0, caught = 0;
  std::string first;
  for (const CaseLine& line : CasesOf(*kernel->op)) {
    if (line.refuses()) continue;
    auto c = ParseCase(*kernel->op, line.text);
    ASSERT_TRUE(c.ok());
    const CaseResult result = RunCase(engine, *c, *kernel);
    admitted += result.verdict != Verdict::kNotAdmitted;
    if (result.verdict != Verdict::kFailed) continue;
    ++caught;
    if (first.empty()) first = line.Where() + "\n  " + result.text;
  }
  EXPECT_GT(admitted, 0);
  if (planted.correct) {
    EXPECT_EQ(caught, 0) << first;
  } else {
    Summary::Get().planted[planted.id] = caught > 0;
    EXPECT_GT(caught, 0) << planted.id << " was not caught in " << admitted << " cases";
  }
}
INSTANTIATE_TEST_SUITE_P(All, PlantedKernel, testing::Range<size_t>(0, kPlanted.size()), [](const auto& info) {
  std::string name = kPlanted[info.param].id;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

TEST(Case, MeansTheSameNumbersEveryTime) {
  const Operation& op = *Engine::Get().Find("rms_norm");
  const char* line = "input=bf16[3,17]~normal@pad@nan weight=bf16[17]";
  auto a = ParseCase(op, line), b = ParseCase(op, line), other = ParseCase(op, std::string(line) + " eps=1e-5");
  ASSERT_TRUE(a.ok() && b.ok() && other.ok());
  EXPECT_TRUE(a->tensors[0].SameBytes(b->tensors[0]));
  EXPECT_FALSE(a->tensors[0].SameBytes(other->tensors[0]));
  EXPECT_EQ(a->tensors[0].strides(), (std::vector<int64_t>{22, 1}));
}

TEST(Case, SaysWhatIsWrongWithALine) {
  const Operation& op = *Engine::Get().Find("rms_norm");
  const auto field = [&](const char* line) {
    auto c = ParseCase(op, line);
    return c.ok() ? "" : c.status().parts().field;
  };
  EXPECT_EQ(field("input=f31[2,3]"), "input");
  EXPECT_EQ(field("input=f32[2,x]"), "input");
  EXPECT_EQ(field("input=f32[2]{1}"), "input");
  EXPECT_EQ(field("input=f32[2]~poisson"), "input");
  EXPECT_EQ(field("input=f32[2]@upside_down"), "input");
  EXPECT_EQ(field("gain=f32[2]"), "gain");
  EXPECT_EQ(field("eps=small"), "eps");
}

TEST(Compare, NanMeetsNanAndInfinityItself) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto ok = [&](double wanted, float got, std::string_view numerics = {}) {
    OwnedTensor t = OwnedTensor::RowMajor(DType::kF32, {1});
    std::memcpy(t.data(), &got, sizeof(got));
    return CompareFloats(rms::kContract, numerics, "output", t.tensor(), {wanted}).ok;
  };
  for (const std::string_view numerics : {"", "fp32"}) {
    EXPECT_TRUE(ok(nan, std::nanf(""), numerics));
    EXPECT_TRUE(ok(inf, HUGE_VALF, numerics));
    EXPECT_FALSE(ok(inf, -HUGE_VALF, numerics));
    EXPECT_FALSE(ok(inf, 3e38f, numerics));
    EXPECT_FALSE(ok(nan, 0.0f, numerics));
    EXPECT_FALSE(ok(0, std::nanf(""), numerics));
    EXPECT_FALSE(ok(1, HUGE_VALF, numerics));
    EXPECT_TRUE(ok(0, -0.0f, numerics));
  }
  EXPECT_TRUE(ok(1, 1 + 1.9e-5f));
  EXPECT_FALSE(ok(1, 1 + 2.1e-5f));
  EXPECT_FALSE(ok(1, 1 + 3e-6f, "fp32"));  // rel F: 2e-6
}

}  // namespace
}  // namespace lz::verify
