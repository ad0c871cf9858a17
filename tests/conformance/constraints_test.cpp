// One refusal for each row that a kernel declares: a request that satisfies all its rows but that one is refused with
// exactly that row's code and field. Requests are mutated from the operation's cases; devices are made up.
#include <gtest/gtest.h>

#include "pipeline/filter.h"
#include "tests/conformance/drafts.h"

namespace lz::verify {
namespace {

constexpr int kMutations = 12000;  // requests tried for each operation

// Rows that no request isolates, because the contract or another row of the kernel refuses first: what is not declared
// is not supported, so most of them make themselves. A row that is isolated after all must leave the list.
struct Implied {
  std::string_view kernel, field, by;
};
constexpr auto kImplied = std::to_array<Implied>({
    {"cpu.kv.append_paged", "dtype", "new rows are floating, and the cache has their dtype"},
    {"cpu.kv.gather", "scale.given", "a scale comes with a dtype, which the kernel does not take"},
    {"hwy.mlp.linear.quantized.gemv", "tensor_scale.last_dim_stride1", "its last axis is 1"},
    {"hwy.mlp.linear.quantized.gemm", "tensor_scale.last_dim_stride1", "its last axis is 1"},
    {"x86.mlp.linear.quantized.avx512bf16", "tensor_scale.last_dim_stride1", "its last axis is 1"},
    {"hwy.kv.rope_append_paged", "d", "nothing refuses first, but no drawn head has 1,025 elements"},
    {"hwy.kv.rope_append_paged.coded", "d", "nothing refuses first, but no drawn head has 1,025 elements"},
    {"openblas.mlp.linear", "rows", "nothing refuses first, but no drawn input has 2^31 rows"},
    {"cublaslt.mlp.fused", "up_bias.given", "it comes with up_weight, which the kernel does not take"},
    {"hwy.quantize.int8", "scale.last_dim_stride1", "the scale has no axes"},
    {"hwy.quantize.int8", "tensor_scale.given", "nvfp4 alone has one"},
    {"hwy.quantize.int8", "group_size.given", "a scale that is given says its groups"},
    {"hwy.quantize.int8", "block_rows.given", "a scale that is given says its blocks"},
    {"hwy.quantize.int8", "scale_rule", "for e8m0 scales alone"},
    {"hwy.quantize.int8", "zero_point.dtype", "the kernel takes no zero_point"},
});

// All rows of one kernel, and which of them a request was found for.
struct Subject {
  const KernelEntry* kernel;
  DeviceFacts device{};
  PolicyFacts policy{};
  std::vector<bool> isolated;
  bool admitted = false;
};

class Search {
 public:
  explicit Search(const Operation& op) : op_(op), random_(HashSeed(op.name())) {
    auto scope = engine_.PolicyScope(0, R"({"allow_adaptation": false})");
    EXPECT_TRUE(scope.ok());
    auto policy = engine_.selector().policies().For(*scope, op);
    EXPECT_TRUE(policy.ok());
    policy_ = **policy;
    for (const KernelEntry* k : engine_.selector().registry().Kernels(&op)) {
      if (k->id.starts_with("planted.")) continue;
      Subject s{.kernel = k, .isolated = std::vector<bool>(k->rows.size())};
      if (const auto facts = Satisfy<DeviceFacts>(*k, FieldHome::kDevice, nullptr)) s.device = *facts;
      if (const auto facts = Satisfy<PolicyFacts>(*k, FieldHome::kPolicy, nullptr)) s.policy = *facts;
      subjects_.push_back(std::move(s));
    }
  }

  void Run() {
    std::vector<Draft> seeds;
    for (const CaseLine& line : CasesOf(op_)) {
      auto c = ParseCase(op_, line.text);
      if (line.refuses() || !c.ok()) continue;
      if (auto draft = DraftOf(*c)) seeds.push_back(std::move(*draft));
    }
    for (const Draft& seed : seeds) {
      Try(seed);
      for (size_t i = 0; i < seed.strides.size(); ++i) TryChanged(seed, i);
    }
    for (int i = 0; i < kMutations && !testing::Test::HasFailure(); ++i) {
      Draft d = random_.Of(seeds);
      for (int64_t n = 1 + random_.Below(3); n > 0; --n) d = Mutated(random_, op_, std::move(d));
      if (random_.Chance(15)) d.flags = uint32_t(1 + random_.Below(2));
      if (random_.Chance(5)) d.layout = int32_t(random_.Below(int64_t(std::max<size_t>(1, op_.layout_names().size()))));
      Try(d);
    }
  }
  const std::vector<Subject>& subjects() const { return subjects_; }

 private:
  static uint64_t HashSeed(std::string_view text) {
    uint64_t seed = 17;
    for (char c : text) seed = seed * 131 + uint8_t(c);
    return seed;
  }

  // The seed with input `i` changed: given or absent, in each dtype with those that must have the same, in each layout.
  void TryChanged(const Draft& seed, size_t i) {
    for (const bool given : {true, false}) {
      Draft draft = seed;
      draft.given[i] = given;
      Try(draft);
      for (const DType dtype : DTypesOf(given ? op_.input(i).dtypes : 0)) {
        draft.dtypes[i] = dtype;
        for (size_t k = 0; k < draft.dtypes.size(); ++k) {
          if (op_.same_dtype(k) == int(i)) draft.dtypes[k] = dtype;
        }
        Try(draft);
      }
      draft.dtypes = seed.dtypes;
      for (int strides = 1; given && strides <= 4; ++strides) {
        draft.strides[i] = strides;
        Try(draft);
      }
    }
  }

  void Try(Draft draft) {
    draft.device = 0;
    draft.policy = 0;
    const auto built = Build(op_, draft);
    if (!built) return;
    const int variant = VariantOf(built->r);
    for (Subject& s : subjects_) {
      if (int(s.kernel->variant) == variant) Judge(built->r, variant, &s);
    }
  }

  void Judge(const Request& r, int variant, Subject* s) {
    std::optional<size_t> broken;
    for (size_t i = 0; i < s->kernel->rows.size(); ++i) {
      if (RowHolds(r, s->kernel->rows[i], {s->device, s->policy})) continue;
      if (broken) return;
      broken = i;
    }
    if (broken) {
      if (!s->isolated[*broken]) Confirm(r, variant, *s, *broken, s->device, s->policy);
      s->isolated[*broken] = true;
      return;
    }
    if (s->admitted) return;
    s->admitted = true;  // from an admitted request: rows about the device and the policy
    for (size_t i = 0; i < s->kernel->rows.size(); ++i) {
      const Row& row = s->kernel->rows[i];
      if (row.fact >= 0) {
        PolicyFacts facts = s->policy;
        facts[op_.fields()[size_t(row.fact)].slot] = 0;
        Confirm(r, variant, *s, i, s->device, facts);
        s->isolated[i] = true;
      } else if (IsHome(*s->kernel, row, FieldHome::kDevice)) {
        if (const auto facts = Satisfy<DeviceFacts>(*s->kernel, FieldHome::kDevice, &row)) {
          Confirm(r, variant, *s, i, *facts, s->policy);
          s->isolated[i] = true;
        }
      } else if (IsHome(*s->kernel, row, FieldHome::kPolicy)) {
        if (const auto facts = Satisfy<PolicyFacts>(*s->kernel, FieldHome::kPolicy, &row)) {
          Confirm(r, variant, *s, i, s->device, *facts);
          s->isolated[i] = true;
        }
      }
    }
  }

  // What selection itself says.
  void Confirm(const Request& r, int variant, const Subject& s, size_t broken, const DeviceFacts& device_facts,
               const PolicyFacts& policy_facts) {
    Device device;
    device.facts = device_facts;
    OperationPolicy policy = policy_;
    policy.facts = policy_facts;
    const Row& row = s.kernel->rows[broken];
    for (Candidate& c : Filter(r, variant, device, policy)) {
      if (c.kernel != s.kernel) continue;
      std::erase_if(c.reasons, [](const Reason& reason) { return reason.row == kNoRow; });  // transforms not allowed
      ASSERT_EQ(c.reasons.size(), 1u) << s.kernel->id << ": " << row.field_name;
      EXPECT_EQ(c.reasons[0].code, row.code) << s.kernel->id << ": " << row.field_name;
      EXPECT_EQ(c.reasons[0].field, row.field);
      EXPECT_EQ(c.reasons[0].row, broken);
      EXPECT_EQ(c.reasons[0].wanted, RowOperand(r, row, {device_facts, policy_facts}));
      EXPECT_NE(row.code, ReasonCode::kAuto);
      EXPECT_FALSE(Info(row.code).name.empty());
      return;
    }
    ADD_FAILURE() << s.kernel->id << " is no candidate";
  }

  Engine& engine_ = Engine::Get();
  const Operation& op_;
  Random random_;
  OperationPolicy policy_;
  std::vector<Subject> subjects_;
};

// No valid request breaks it: the contract takes no other dtype either, or the row is listed.
bool IsImplied(const KernelEntry& k, const Row& row) {
  if (row.field_name == "dtype" && row.rel == Rel::kInMask && (k.op->input(0).dtypes & ~row.operand) == 0) return true;
  return std::ranges::any_of(kImplied, [&](const Implied& i) { return i.kernel == k.id && i.field == row.field_name; });
}

TEST(Constraints, EachRowAloneRefusesWithItsCode) {
  size_t rows = 0, kernels = 0, isolated = 0, implied = 0;
  std::vector<std::string> not_isolated, not_implied;
  for (const auto& op : Engine::Get().operations()) {
    Search search(*op);
    search.Run();
    for (const Subject& s : search.subjects()) {
      ++kernels;
      EXPECT_TRUE(s.admitted) << "no request that " << s.kernel->id << " admits";
      for (size_t i = 0; i < s.kernel->rows.size(); ++i) {
        ++rows;
        const Row& row = s.kernel->rows[i];
        isolated += s.isolated[i];
        const bool is_implied = IsImplied(*s.kernel, row);
        implied += is_implied;
        if (s.isolated[i] == is_implied) {
          (is_implied ? not_implied : not_isolated).push_back(s.kernel->id + ": " + row.field_name);
        }
      }
    }
  }
  std::cout << kernels << " kernels, " << rows << " rows: " << isolated << " isolated, " << implied << " implied\n";
  EXPECT_EQ(not_isolated, std::vector<std::string>());
  EXPECT_EQ(not_implied, std::vector<std::string>());
}

}  // namespace
}  // namespace lz::verify
