// The codes that the engine derives from a kernel's rules, each provoked by such a rule. Devices are simulated. The
// positive control of each: a kernel that lacks the rule, for which this code's check must fail and no other. All codes
// are provoked through the public API in tests/python/test_reasons.py.
#include <deque>

#include "tests/conformance/summary.h"
#include "tests/pipeline/selector_fixture.h"

namespace lz {
namespace {

struct Provocation {
  ReasonCode code;
  std::vector<Constraint> rows = {};
  const char* line = "query=f32[1,3,2,8] key=f32[1,5,2,8] value=f32[1,5,2,8]";
  const char* operation = "attention.standard.prefill";
  const char* device = "";
  const char* policy = "";
  uint32_t flags = 0;
  KernelSpec spec = {.strides = Strides::kAny, .deterministic = true, .cuda_graph_safe = true, .requires_grad = true};
};
using enum ReasonCode;

constexpr std::array<int64_t, 2> kGroups = {1, 4}, kHopper = {5, 5};
constexpr std::array<std::string_view, 1> kNothing = {"causal"};
constexpr KernelSpec kPlain = {
    .strides = Strides::kAny, .deterministic = true, .cuda_graph_safe = true, .requires_grad = true};

KernelSpec With(void (*change)(KernelSpec*)) {
  KernelSpec s = kPlain;
  change(&s);
  return s;
}
KernelSpec OnGpu() {
  return With([](KernelSpec* s) { s->platform = Platform::kCuda; });
}
const char* kGqa = "query=f32[1,3,6,8] key=f32[1,5,2,8] value=f32[1,5,2,8]";
const char* kMasked = "query=f32[1,3,2,8] key=f32[1,5,2,8] value=f32[1,5,2,8] attn_mask=bool[3,5]";
const char* kOdd = "query=f32[1,3,2,8]@strided key=f32[1,5,2,8] value=f32[1,5,2,8]";

std::vector<Provocation> Provocations() {
  std::vector<Provocation> all = {
      {.code = kPlatformMismatch, .device = "h100"},
      {.code = kDeviceCapabilityUnsupported, .rows = {{"device.isa", Rel::kHasBits, kIsaAmxBf16}}, .device = "zen4"},
      {.code = kSmTooOld, .rows = {{"device.sm", Rel::kGe, 80}}, .device = "t4", .spec = OnGpu()},
      {.code = kSmTooNew, .rows = {{"device.sm", Rel::kLe, 90}}, .device = "b200", .spec = OnGpu()},
      {.code = kGpuGenerationUnsupported,
       .rows = {{"device.generation", Rel::kInSet, 0, kHopper}},
       .device = "a100",
       .spec = OnGpu()},
      {.code = kTensorCoreGenUnsupported,
       .rows = {{"device.tensor_core_generation", Rel::kGe, 4}},
       .device = "a100",
       .spec = OnGpu()},
      {.code = kInstructionSetMismatch,
       .rows = {{"device.instruction_sets", Rel::kHasBits, InstructionSetFromName("tcgen05")}},
       .device = "rtx5090",
       .spec = OnGpu()},
      {.code = kDriverVersionUnsupported,
       .rows = {{"device.driver_version", Rel::kGe, 999000}},
       .device = "h100",
       .spec = OnGpu()},
      {.code = kDtypeUnsupported, .spec = With([](KernelSpec* s) { s->dtypes = Mask(DType::kF16); })},
      {.code = kHeadDimInvalid, .rows = {{"d_qk", Rel::kGe, 16}}},
      {.code = kHeadDimAlignment, .rows = {{"d_qk", Rel::kMultipleOf, 16}}},
      {.code = kHeadDimTooLarge, .rows = {{"d_qk", Rel::kLe, 4}}},
      {.code = kSeqTooLong, .rows = {{"s_kv", Rel::kLe, 4}}},
      {.code = kGqaUnsupported, .rows = {{"group", Rel::kEq, 1}}, .line = kGqa, .operation = "attention.gqa.prefill"},
      {.code = kGqaHeadsMismatch,
       .rows = {{"group", Rel::kInSet, 0, kGroups}},
       .line = kGqa,
       .operation = "attention.gqa.prefill"},
      {.code = kAttnMaskUnsupported, .line = kMasked, .spec = With([](KernelSpec* s) { s->accepts = kNothing; })},
      {.code = kStrideLastDim, .line = kOdd, .policy = R"({"strict_mode": true})", .spec = With([](KernelSpec* s) {
                                                                                     s->strides =
                                                                                         Strides::kLastDimDense;
                                                                                   })},
      {.code = kNotContiguous,
       .line = kOdd,
       .policy = R"({"allow_adaptation": false})",
       .spec = With([](KernelSpec* s) { s->strides = Strides::kContiguous; })},
      {.code = kTransformNotAllowed,
       .line = kOdd,
       .policy = R"({"strict_mode": true})",
       .spec = With([](KernelSpec* s) { s->strides = Strides::kContiguous; })},
      {.code = kCudaGraphUnsafe, .flags = LZ_FLAG_CAPTURING, .spec = With([](KernelSpec* s) {
                                                               s->cuda_graph_safe = false;
                                                             })},
      {.code = kGradUnsupported, .flags = LZ_FLAG_REQUIRES_GRAD, .spec = With([](KernelSpec* s) {
                                                                   s->requires_grad = false;
                                                                 })},
      {.code = kNonDeterministic, .policy = R"({"deterministic": true})", .spec = With([](KernelSpec* s) {
                                                                            s->deterministic = false;
                                                                          })},
      {.code = kConstraintFailed, .rows = {{"b * s_q", Rel::kLe, 2}}},
      {.code = kShapeUnsupported, .rows = {{"b", Rel::kGe, 2}}},
      {.code = kCudaBlockLimitExceeded,
       .rows = {{"device.max_grid_blocks", Rel::kGe, kCudaMaxGridBlocks + 1}},
       .device = "h100",
       .spec = OnGpu()},
      {.code = kCudaGridDimExceeded,
       .rows = {{"device.max_grid_y", Rel::kGe, kCudaMaxGridY + 1}},
       .device = "h100",
       .spec = OnGpu()},
      {.code = kMemoryHeadroomExceeded,
       .spec = With([](KernelSpec* s) { s->workspace = [](const lz_kernel_args*) { return uint64_t{1} << 50; }; })},
      {.code = kLayoutUnsupported,
       .rows = {{"query.broadcast", Rel::kEq, 0}},
       .line = "query=f32[2,3,2,8]@expand key=f32[2,5,2,8] value=f32[2,5,2,8]"},
      {.code = kDropoutUnsupported,
       .line = "query=f32[1,3,2,8] key=f32[1,5,2,8] value=f32[1,5,2,8] dropout_p=0.5",
       .spec = With([](KernelSpec* s) { s->accepts = kNothing; })},
      {.code = kScaleUnsupported,
       .line = "query=f32[1,3,2,8] key=f32[1,5,2,8] value=f32[1,5,2,8] scale=0.5",
       .spec = With([](KernelSpec* s) { s->accepts = kNothing; })},
      {.code = kArgumentUnsupported,
       .line = "query=f32[1,3,2,8] key=f32[1,5,2,8] value=f32[1,5,2,8] window=2",
       .spec = With([](KernelSpec* s) { s->accepts = kNothing; })},
      {.code = kAlignment,
       .rows = {{"query.alignment", Rel::kGe, 4}},
       .line = "query=f32[1,3,2,8]@offset key=f32[1,5,2,8] value=f32[1,5,2,8]"},
      {.code = kPolicyDenied, .policy = R"({"rules": [{"deny": ["t.*"]}]})"},
  };
  return all;
}

// A registry with one kernel for each provocation, and the checks of the codes.
class Checks : public SelectorFixture {
 public:
  enum class Form {
    kProvoking,
    kWithoutRows,  // its spec's own rules alone
    kFaulty,       // no rule at all: what the code is for goes unnoticed
  };
  static std::string IdOf(const Provocation& p, Form form) {
    constexpr std::array<const char*, 3> kPrefix = {"t.", "plain.", "faulty."};  // a policy above denies t.*
    return kPrefix[size_t(form)] + std::string(Info(p.code).name);
  }
  void RegisterOne(const Provocation& p, Form form) {
    const std::string id = IdOf(p, form);
    KernelSpec spec = form == Form::kFaulty ? kPlain : p.spec;
    spec.id = id;
    spec.operation = p.operation;
    if (form == Form::kFaulty) spec.platform = Platform::kAny;
    if (spec.dtypes == 0) spec.dtypes = kFloats;
    if (spec.accepts.empty()) spec.accepts = kAcceptsAll;
    if (form == Form::kProvoking) spec.constraints = p.rows;
    spec.launch = [](const lz_kernel_args*) { return int32_t{0}; };
    const Registry::Registration one{&spec, {}, {}};
    Status status = selector.registry().Register({&one, 1});
    ASSERT_TRUE(status.ok()) << status.Text();
  }
  // The call that provokes `p.code`.
  SelectionReport Provoke(const Provocation& p) {
    const int64_t scope = *p.policy ? selector.policies().Scope(0, p.policy).value() : 0;
    const Operation& op = *selector.registry().Find(p.operation);
    Call& c = MakeCall(std::string(op.name()).c_str(), p.line);
    c.r.policy = scope;
    c.r.flags = p.flags;
    if (*p.device) {
      auto device = selector.context().FindByName(p.device);
      EXPECT_TRUE(device.ok()) << device.status().Text();
      c.r.device = *device;
    }
    SelectionReport report = Explain(c);
    EXPECT_EQ(std::string(op.contract().variants[size_t(report.variant)].id), p.operation);
    calls.clear();
    return report;
  }
  static bool Raises(const SelectionReport& report, const Provocation& p, Form form) {
    return Has(Of(report, IdOf(p, form)), p.code);
  }
  static bool Admits(const SelectionReport& report, const Provocation& p, Form form) {
    return Of(report, IdOf(p, form)).reasons.empty();
  }
  void TestBody() override {}
};
using Form = Checks::Form;

TEST(Reasons, EveryCodeHasCauseAndFix) {
  for (size_t i = 1; i < size_t(ReasonCode::kCount); ++i) {
    EXPECT_FALSE(Info(ReasonCode(i)).cause.empty()) << Info(ReasonCode(i)).name;
    EXPECT_FALSE(Info(ReasonCode(i)).fix.empty()) << Info(ReasonCode(i)).name;
  }
}

TEST(Reasons, EachIsRaisedByItsCauseAlone) {
  Checks checks;
  for (const Provocation& p : Provocations()) {
    SCOPED_TRACE(std::string(Info(p.code).name));
    for (const Form form : {Form::kProvoking, Form::kWithoutRows, Form::kFaulty}) checks.RegisterOne(p, form);
    const SelectionReport report = checks.Provoke(p);
    EXPECT_TRUE(Checks::Raises(report, p, Form::kProvoking));
    EXPECT_TRUE(p.rows.empty() || !Checks::Raises(report, p, Form::kWithoutRows));
    EXPECT_FALSE(Checks::Raises(report, p, Form::kFaulty)) << "raised without its cause";
    EXPECT_TRUE(Checks::Admits(report, p, Form::kFaulty)) << "a kernel without rules is admitted";
  }
}

// A fault for each code: its kernel lacks the rule, while every other kernel has its own.
TEST(Reasons, AFaultFailsTheCheckOfItsCodeAndNoOther) {
  const std::vector<Provocation> all = Provocations();
  for (const Provocation& faulty : all) {
    Checks checks;
    const auto form = [&](const Provocation& p) { return p.code == faulty.code ? Form::kFaulty : Form::kProvoking; };
    for (const Provocation& p : all) checks.RegisterOne(p, form(p));
    std::vector<std::string_view> failed;
    for (const Provocation& p : all) {
      if (!Checks::Raises(checks.Provoke(p), p, form(p))) failed.push_back(Info(p.code).name);
    }
    const std::vector<std::string_view> wanted = {Info(faulty.code).name};
    EXPECT_EQ(failed, wanted);
    verify::Summary::Get().planted["reason/" + std::string(wanted[0])] = failed == wanted;
  }
}

}  // namespace
}  // namespace lz
