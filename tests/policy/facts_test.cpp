// Facts of a policy and of devices in rows: each refuses what it says with its own code, names itself, and splits the
// classes where it has to; and conditions that are no longer used leave the classes.
#include "policy/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "tests/pipeline/selector_fixture.h"

namespace lz {
namespace {

using testing::HasSubstr;
using enum ReasonCode;

const char* const kNorm = "input=f32[2,8] weight=f32[8]";
const char* const kPaged =
    "q=f32[1,2,8] paged_k_cache=f32[2,4,2,8] paged_v_cache=f32[2,4,2,8] kv_indptr=i32[2]{0,1} kv_indices=i32[1]{0} "
    "kv_last_page_len=i32[1]{3}";
const char* const kDense = "query=f32[1,3,2,8] key=f32[1,5,2,8] value=f32[1,5,2,8]";

class PolicyFactsTest : public SelectorFixture {
 protected:
  static int32_t Launch(const lz_kernel_args*) { return 0; }
  static KernelSpec Spec(const char* id, const char* operation) {
    return {.id = id,
            .operation = operation,
            .platform = Platform::kAny,
            .strides = Strides::kAny,
            .deterministic = true,
            .launch = &Launch};
  }
  // The codes with which `kernel` is refused under a policy.
  std::vector<ReasonCode> CodesOf(const char* kernel, const char* name, const std::string& line,
                                  const std::string& policy, const char* device = "") {
    Call& c = MakeCall(name, line);
    c.r.policy = policy.empty() ? 0 : selector.policies().Scope(0, policy).value();
    if (*device) c.r.device = selector.context().FindByName(device).value();
    const SelectionReport report = Explain(c);
    std::vector<ReasonCode> codes;
    for (const Reason& reason : Of(report, kernel).reasons) codes.push_back(reason.code);
    return codes;
  }
  std::string Refusal(const std::string& policy) {
    Status status = selector.policies().Configure(policy);
    EXPECT_EQ(status.code(), StatusCode::kConfig) << policy;
    return status.Text();
  }
};
using Codes = std::vector<ReasonCode>;

TEST_F(PolicyFactsTest, EachRefusesWithItsOwnCode) {
  KernelSpec plain = Spec("a.plain", "norm.rms"), sharded = Spec("a.sharded", "norm.rms");
  sharded.tp = {.is_tp_invariant = true, .reduction_order = ReductionOrder::kTree, .max_tp_size = 4};
  Register(plain);
  Register(sharded);
  KernelSpec softmax = Spec("a.bf16p", "attention.standard.prefill");
  softmax.numerics = "bf16-p";
  Register(softmax);
  Register(Spec("a.paged", "attention.standard.decode.paged"));
  Register(Spec("a.quant", "mlp.linear.quantized"));
  const struct {
    const char *kernel, *name, *line;
    std::string policy;
    Codes codes;
  } all[] = {
      {"a.plain", "rms_norm", kNorm, "", {}},
      {"a.plain", "rms_norm", kNorm, R"({"tp": {"size": 8}})", {}},
      {"a.sharded", "rms_norm", kNorm, R"({"tp": {"size": 4}})", {}},
      {"a.sharded", "rms_norm", kNorm, R"({"tp": {"size": 5}})", {kTpSizeExceeded}},
      {"a.plain", "rms_norm", kNorm, R"({"tp": {"require_tp_invariant": true}})", {kTpInvarianceRequired}},
      {"a.sharded", "rms_norm", kNorm, R"({"tp": {"require_tp_invariant": true}})", {}},
      {"a.plain", "rms_norm", kNorm, R"({"tp": {"reduction_order": "tree"}})", {kReductionOrderMismatch}},
      {"a.sharded", "rms_norm", kNorm, R"({"tp": {"reduction_order": "tree"}})", {}},
      {"a.sharded", "rms_norm", kNorm, R"({"tp": {"reduction_order": "ring"}})", {kReductionOrderMismatch}},
      {"a.paged", "paged_decode_attention", kPaged, "", {}},
      {"a.paged", "paged_decode_attention", kPaged, R"({"kv_cache": {"dtypes": ["float32"]}})", {}},
      {"a.paged",
       "paged_decode_attention",
       kPaged,
       R"({"kv_cache": {"dtypes": ["bfloat16", "int8"]}})",
       {kKvCacheDtypeMismatch}},
      {"a.bf16p", "attention", kDense, "", {}},
      {"a.bf16p", "attention", kDense, R"({"forbid_numerics": ["fp32"]})", {}},
      {"a.bf16p", "attention", kDense, R"({"forbid_numerics": ["fp32", "bf16-p"]})", {kPolicyDenied}},
  };
  for (const auto& one : all) {
    EXPECT_EQ(CodesOf(one.kernel, one.name, one.line, one.policy), one.codes) << one.kernel << " " << one.policy;
  }
}

TEST_F(PolicyFactsTest, FormatsAndLayoutsInTheNumberingOfEachOperation) {
  for (const auto& op : selector.registry().operations()) {
    Policy policy;
    EXPECT_EQ(PolicyFactsOf(policy, *op)[size_t(PolicyField::kQuantFormats)], kAllAllowed);
    policy.quant_formats = {"int4"};
    policy.kv_layout = "HND";
    const PolicyFacts facts = PolicyFactsOf(policy, *op);
    const auto format = op->FindField("format");
    if (format && op->fields()[*format].type == FieldType::kChoice) {
      const int64_t index = ChoiceIndex(op->fields()[*format].choices, "int4");
      EXPECT_EQ(facts[size_t(PolicyField::kQuantFormats)], index < 0 ? 0 : int64_t{1} << index) << op->name();
    }
    const bool has_layouts =
        op->name() == "kv_append_paged" || op->name() == "kv_rope_append_paged" || op->name() == "kv_gather";
    EXPECT_EQ(facts[size_t(PolicyField::kKvLayout)], has_layouts ? 2 : kAllAllowed) << op->name();
  }
}

// Of operations that take the format as a choice, and of those where it is a derived fact, a range in the classes.
TEST_F(PolicyFactsTest, ACachedPlanDoesNotCrossAForbiddenFormat) {
  Register(Spec("a.quantize", "quantize"));
  for (const char* format : {"int8", "fp8_e4m3"}) {
    const std::string line = "input=f32[4,64] dtype=" + std::string(format);
    for (const bool allowed : {true, false, true}) {
      Call& c = MakeCall("quantize", line);
      const std::string other = std::string(format) == "int8" ? "fp8_e4m3" : "int8";
      const std::string policy = R"({"quant": {"formats": [")" + (allowed ? std::string(format) : other) + R"("]}})";
      c.r.policy = selector.policies().Scope(0, policy).value();
      ASSERT_TRUE(selector.Bind(c.r).ok());
      EXPECT_EQ(selector.Select(c.r).ok(), allowed) << policy;
    }
  }
}

TEST_F(PolicyFactsTest, NamesThatNothingHasAreRefusedWithTheNearest) {
  EXPECT_THAT(Refusal(R"({"kv_cache": {"dtypes": ["bfloat6"]}})"),
              HasSubstr("lz.configure: kv_cache.dtypes: wanted a dtype of KV caches: "));
  EXPECT_THAT(Refusal(R"({"kv_cache": {"dtypes": ["bfloat6"]}})"), HasSubstr("did you mean bfloat16?"));
  EXPECT_THAT(Refusal(R"({"quant": {"formats": ["int9"]}})"), HasSubstr("did you mean int"));
  EXPECT_THAT(Refusal(R"({"forbid_numerics": ["bf16p"]})"), HasSubstr("did you mean bf16-p?"));
  EXPECT_THAT(Refusal(R"({"tp": {"reduction_order": "tre"}})"), HasSubstr("did you mean tree?"));
  EXPECT_THAT(Refusal(R"({"kv_cache": {"layout": "BSHD"}})"), HasSubstr("wanted one of any, NHD, HND"));
}

TEST_F(PolicyFactsTest, RulesMatchThem) {
  Register(Spec("a.plain", "norm.rms"));
  const std::string rule =
      R"("rules": [{"match": {"tp_size": ">2", "policy.tp.reduction_order": "any"}, "deny": "a.*"}])";
  EXPECT_EQ(CodesOf("a.plain", "rms_norm", kNorm, "{" + rule + "}"), Codes{});
  EXPECT_EQ(CodesOf("a.plain", "rms_norm", kNorm, R"({"tp": {"size": 4}, )" + rule + "}"), Codes{kPolicyDenied});
}

// ---- facts as operands

constexpr auto kFitsCores = std::to_array<Constraint>(
    {{.field = "... * hidden", .rel = Rel::kLe, .code = kShapeUnsupported, .fact = "device.num_cores"}});

TEST_F(PolicyFactsTest, ARowComparesWithAFactOfTheDevice) {
  KernelSpec spec = Spec("a.fits", "norm.rms");
  spec.constraints = kFitsCores;
  Register(spec);
  const int64_t cores =
      selector.context().device(selector.context().FindByName("h100").value()).fact(DeviceField::kNumCores);
  const auto line = [](int64_t hidden) {
    return "input=f32[1," + std::to_string(hidden) + "] weight=f32[" + std::to_string(hidden) + "]";
  };
  EXPECT_EQ(CodesOf("a.fits", "rms_norm", line(cores), "", "h100"), Codes{});
  EXPECT_EQ(CodesOf("a.fits", "rms_norm", line(cores + 1), "", "h100"), Codes{kShapeUnsupported});
  EXPECT_EQ(CodesOf("a.fits", "rms_norm", line(cores), "", "t4"), Codes{kShapeUnsupported});
  Call& c = MakeCall("rms_norm", line(cores + 1));
  c.r.device = selector.context().FindByName("h100").value();
  const SelectionReport report = Explain(c);
  EXPECT_EQ(Of(report, "a.fits").reasons[0].wanted, cores);
  EXPECT_EQ(Of(report, "a.fits").reasons[0].got, cores + 1);
}

TEST_F(PolicyFactsTest, APreferenceComparesWithAFactOfTheDevice) {
  static constexpr auto kWhen =
      std::to_array<Constraint>({{.field = "hidden", .rel = Rel::kGt, .fact = "device.num_cores"}});
  static constexpr auto kPreference = std::to_array<Preference>({{.when = kWhen, .priority = 7}});
  KernelSpec spec = Spec("a.wide", "norm.rms");
  spec.preferences = kPreference;
  Register(spec);
  for (const auto& [device, priority] : {std::pair("h100", 50), {"t4", 7}}) {
    Call& c = MakeCall("rms_norm", "input=f32[1,100] weight=f32[100]");
    c.r.device = selector.context().FindByName(device).value();
    EXPECT_EQ(Of(Explain(c), "a.wide").priority, priority) << device;
  }
}

TEST_F(PolicyFactsTest, WhatCannotBeComparedIsRefusedAtRegistration) {
  const struct {
    Constraint row;
    const char* message;
  } wrong[] = {
      {{.field = "hidden", .rel = Rel::kLe, .fact = "device.speed"}, "wanted a fact of the device or the policy"},
      {{.field = "hidden", .rel = Rel::kLe, .fact = "hidden"}, "wanted a fact of the device or the policy"},
      {{.field = "hidden", .rel = Rel::kLe, .fact = "policy.tp.size"}, "wanted a fact of the device"},
      {{.field = "hidden", .rel = Rel::kLe, .operand = 3, .fact = "device.sm"}, "wanted a fact alone"},
  };
  for (const auto& one : wrong) {
    KernelSpec spec = Spec("a.wrong", "norm.rms");
    spec.dtypes = kFloats;
    spec.constraints = {&one.row, 1};
    const Registry::Registration registration{&spec, {}, {}};
    EXPECT_THAT(selector.registry().Register({&registration, 1}).Text(), HasSubstr(one.message));
  }
}

// ---- conditions that leave the classes

constexpr int kSets = 10'000;
constexpr size_t kMaxIdle = 32;  // conditions without a holder that a registry keeps
size_t HeapBytes() { return mallinfo2().uordblks; }

class ThresholdsTest : public PolicyFactsTest {
 protected:
  const Operation& op = *selector.registry().Find("rms_norm");
  int Cuts() const { return op.state().classifier.num_thresholds(); }
  // Runs `replace` with ever new numbers and expects neither cuts, predicates nor memory to grow with their count.
  // `sets`: how many of them may be in the classes at once.
  template <class Replace>
  void ExpectFlat(Replace&& replace, size_t bytes, size_t sets) {
    const int before = Cuts();
    for (int i = 0; i < 1000; ++i) replace(i);
    const size_t heap = HeapBytes();
    int most = 0;
    for (int i = 1000; i < 1000 + kSets; ++i) {
      replace(i);
      most = std::max(most, Cuts());
    }
    EXPECT_LE(most, before + int(sets + kMaxIdle) + 1);
    EXPECT_LE(op.state().predicates.size(), 64u);
    EXPECT_LE(HeapBytes(), heap + bytes);
  }
};

TEST_F(ThresholdsTest, TenThousandReplacedRuleSets) {
  ExpectFlat(
      [&](int i) {
        const std::string n = std::to_string(16 + i);
        ASSERT_TRUE(selector.policies()
                        .Configure(R"({"rules": [{"match": {"hidden": ">)" + n + R"("}, "deny": "a.*"}]})")
                        .ok());
        ASSERT_TRUE(selector.policies().For(0, op).ok());
      },
      1 << 20, 1);
}

TEST_F(ThresholdsTest, TenThousandScopesWithRulesOfTheirOwn) {
  ExpectFlat(
      [&](int i) {
        const std::string n = std::to_string(16 + i);
        auto scope =
            selector.policies().Scope(0, R"({"rules": [{"match": {"hidden": ">)" + n + R"("}, "deny": "a.*"}]})");
        ASSERT_TRUE(scope.ok() && selector.policies().For(*scope, op).ok());
      },
      size_t{kSets} * 400, Policies::kMaxCompiled);  // a scope's settings stay: its id may be used again
}

// Sums of axes are predicates, of which an operation has 64: those of kernels that are gone are free again.
TEST_F(ThresholdsTest, TenThousandKernelsThatComeAndGo) {
  const int before = Cuts();
  const size_t predicates = op.state().predicates.size();
  for (int i = 0; i < kSets; ++i) {
    const std::string sum = "hidden + " + std::to_string(i);
    const Constraint rows[] = {{"hidden", Rel::kGe, 16 + i}, {sum, Rel::kLe, 1 << 20}};
    KernelSpec spec = Spec("a.comes", "norm.rms");
    spec.dtypes = kFloats;
    spec.constraints = rows;
    const Registry::Registration one{&spec, {}, "adapter"};
    ASSERT_TRUE(selector.registry().Register({&one, 1}).ok()) << i;
    ASSERT_EQ(selector.registry().Remove("adapter"), 1u);
  }
  EXPECT_EQ(Cuts(), before);
  EXPECT_LE(op.state().predicates.size(), predicates + 1);
}

// The place of a predicate that nothing holds is used again, and what is still held keeps its own.
TEST_F(ThresholdsTest, HeldConditionsKeepTheirPlaces) {
  const auto add = [&](const std::string& sum) {
    const Constraint row{sum, Rel::kLe, 1000};
    return selector.registry().AddThresholds(op, {&row, 1}).value();
  };
  const Registry::Thresholds kept = add("hidden + 1");
  for (int i = 2; i < 1000; ++i) {
    const Registry::Thresholds passing = add("hidden + " + std::to_string(i));
    ASSERT_NE((*passing)[0].predicate, (*kept)[0].predicate);
    EXPECT_EQ(op.state().predicates[size_t((*kept)[0].predicate)].expression.text(), "hidden + 1");
    EXPECT_EQ(op.state().predicates[size_t((*passing)[0].predicate)].expression.text(),
              "hidden + " + std::to_string(i));
  }
}

}  // namespace
}  // namespace lz
