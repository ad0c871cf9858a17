// What holds for every row and every descriptor that ships: no dead rows, no row that changes another's verdict, no way
// around the filter, no look at the device. Each has a planted fault as its control.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <nlohmann/json.hpp>
#include <set>

#include "pipeline/filter.h"
#include "pipeline/selector.h"
#include "registry/descriptor_internal.h"
#include "tests/conformance/drafts.h"

namespace lz::verify {
namespace {

constexpr int kMutations = 20000;  // requests tried for a dtype of a kernel
constexpr int kDrawn = 60;         // requests of each operation for the other invariants

// A selector with the kernels of this build and of every shipped descriptor.
class Invariants : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto folder = std::filesystem::path(LZ_SOURCE_DIR) / "python/layerzero/backends";
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string text = ReadFile(entry.path() / "capabilities.json");
      if (!text.empty()) Add(selector(), text);
    }
  }
  static Selector& selector() {
    static Selector one;
    return one;
  }
  static void Add(Selector& to, const std::string& text) {
    static std::deque<Descriptor> kept;
    auto descriptor = ParseDescriptor(text, "descriptor", to.registry());
    ASSERT_TRUE(descriptor.ok()) << descriptor.status().Text();
    const Descriptor& d = kept.emplace_back(std::move(*descriptor));
    std::vector<Registry::Registration> rows;
    for (const DescribedKernel& k : d.kernels) rows.push_back({&k.spec, {}, std::string(k.adapter)});
    const Status status = to.registry().Register(rows);
    ASSERT_TRUE(status.ok()) << status.Text();
  }
  static OperationPolicy PolicyOf(const Operation& op) {
    auto policy = selector().policies().For(0, op);
    EXPECT_TRUE(policy.ok());
    return **policy;
  }
  static std::vector<Draft> Seeds(const Operation& op) {
    std::vector<Draft> seeds;
    for (const CaseLine& line : CasesOf(*Engine::Get().Find(op.name()))) {
      auto c = ParseCase(op, line.text);
      if (line.refuses() || !c.ok()) continue;
      if (auto draft = DraftOf(*c)) seeds.push_back(std::move(*draft));
    }
    return seeds;
  }
  // Calls body(request) for requests near the operation's cases, until it returns false.
  template <class Body>
  static void ForRequests(const Operation& op, int number, Body&& body) {
    Random random(17 + op.index());
    const std::vector<Draft> seeds = Seeds(op);
    for (int i = 0; i < number; ++i) {
      Draft d = random.Of(seeds);
      for (int64_t n = random.Below(4); n > 0; --n) d = Mutated(random, op, std::move(d));
      d.device = 0, d.policy = 0;
      const auto built = Build(op, d);
      if (built && !body(built->r)) return;
    }
  }
};

// How many rows do not hold, and one more in another operation of the contract; 0: the kernel takes the request.
int NumBroken(const KernelEntry& k, const BoundCall& r, const DeviceFacts& device, const PolicyFacts& policy) {
  const auto fails = [&](const Row& row) { return !RowHolds(r, row, {device, policy}); };
  return int(std::ranges::count_if(k.rows, fails)) + (VariantOf(r) != int(k.variant));
}

// The draft with its first tensor in `dtype`, and the others that had the same dtype as that one.
std::optional<Draft> In(const Operation& op, Draft d, DType dtype) {
  const DType old = d.dtypes[0];
  for (size_t i = 0; i < d.dtypes.size(); ++i) {
    if (d.dtypes[i] == old && (op.input(i).dtypes & Mask(dtype))) d.dtypes[i] = dtype;
  }
  return d.dtypes[0] == dtype ? std::optional(std::move(d)) : std::nullopt;
}

// The fewest broken rows on a device with a GPU's launch limits or with none, which rows for larger calls need.
int FewestBroken(const KernelEntry& k, BoundCall& r, const DeviceFacts& device, const PolicyFacts& policy) {
  static const Device& gpu =
      *std::ranges::max_element(SimulatedDevices(), {}, [](const Device& d) { return d.fact(DeviceField::kMaxGridY); });
  int least = INT_MAX;
  for (const Device* machine : {&gpu, static_cast<const Device*>(nullptr)}) {
    r.machine = machine;
    RefreshFacts(r);
    least = std::min(least, NumBroken(k, r, device, policy));
  }
  return least;
}

// The dtypes of `wanted` in which some request is admitted.
DTypeMask Reached(const KernelEntry& k, const std::vector<Draft>& seeds, DTypeMask wanted) {
  const Operation& op = *k.op;
  const auto device = Satisfy<DeviceFacts>(k, FieldHome::kDevice, nullptr);
  const auto policy = Satisfy<PolicyFacts>(k, FieldHome::kPolicy, nullptr);
  if (!device || !policy) return 0;
  DTypeMask reached = 0;
  Random random(29);
  for (DType dtype : DTypesOf(wanted)) {
    const auto broken = [&](const Draft& draft) {
      const auto changed = In(op, draft, dtype);
      const auto built = changed ? Build(op, *changed) : nullptr;
      return built ? FewestBroken(k, built->r, *device, *policy) : INT_MAX;
    };
    Draft nearest;
    int left = INT_MAX;
    for (const Draft& seed : seeds) {
      if (const int n = broken(seed); n < left) nearest = seed, left = n;
    }
    // Changes are kept as long as no more rows are broken.
    for (int i = 0; left > 0 && left < INT_MAX && i < kMutations; ++i) {
      Draft d = nearest;
      for (int64_t n = 1 + random.Below(3); n > 0; --n) d = Mutated(random, op, std::move(d));
      if (random.Chance(5)) d.layout = int32_t(random.Below(int64_t(std::max<size_t>(1, op.layout_names().size()))));
      d.device = 0, d.policy = 0, d.flags = 0;
      if (const int n = broken(d); n <= left) nearest = std::move(d), left = n;
    }
    if (left == 0) reached |= Mask(dtype);
  }
  return reached;
}

std::string NamesOf(DTypeMask mask) {
  std::string names;
  for (DType dtype : DTypesOf(mask)) names += " " + std::string(Info(dtype).name);
  return names;
}

// Kernels that no call reaches in a dtype that they declare, in the operation or on any device that there is a file of.
std::vector<std::string> DeadRows(const Operation& op, const std::vector<const KernelEntry*>& kernels,
                                  const std::vector<Draft>& seeds) {
  std::vector<std::string> dead;
  for (const KernelEntry* k : kernels) {
    if (const DTypeMask never = k->spec.dtypes & ~op.input(0).dtypes) {
      dead.push_back(k->id + " of " + k->operation + ": not of the contract:" + NamesOf(never));
    }
    const DTypeMask declared = k->spec.dtypes & op.input(0).dtypes;
    if (const DTypeMask missed = declared & ~Reached(*k, seeds, declared)) {
      dead.push_back(k->id + " of " + k->operation + ": no call in" + NamesOf(missed));
    }
  }
  return dead;
}

TEST_F(Invariants, EveryDeclaredDtypeIsReachedBySomeCall) {
  std::vector<std::string> dead;
  for (const auto& op : selector().registry().operations()) {
    const std::vector<Draft> seeds = Seeds(*op);
    std::vector<const KernelEntry*> own;
    for (const KernelEntry* k : selector().registry().Kernels(op.get())) {
      if (!k->id.starts_with("planted.")) own.push_back(k);
    }
    const auto of_op = DeadRows(*op, own, seeds);
    dead.insert(dead.end(), of_op.begin(), of_op.end());
  }
  EXPECT_THAT(dead, testing::IsEmpty());
}

TEST_F(Invariants, ADeadRowIsFound) {
  Selector other;
  Add(other,
      R"({"schema_version": "1.0", "backend": "dead", "backend_version": "1", "platform": "cpu", "ops": {"norm.rms": [
    {"kernel_id": "dead.never", "dtypes": ["float32"], "requires_layouts": ["any"],
     "constraints": [{"field": "hidden", "relation": "<", "operand": 0}]},
    {"kernel_id": "dead.dtype", "dtypes": ["float32", "int8"], "requires_layouts": ["any"]},
    {"kernel_id": "dead.not", "dtypes": ["float32"], "requires_layouts": ["any"], "accepts": ["*"]}]}})");
  const Operation& op = *other.registry().Find("norm.rms");
  std::vector<const KernelEntry*> rows;
  for (const char* id : {"dead.never", "dead.dtype", "dead.not"})
    rows.push_back(other.registry().FindKernel("norm.rms", id));
  EXPECT_THAT(DeadRows(op, rows, Seeds(op)), testing::ElementsAre("dead.never of norm.rms: no call in float32",
                                                                  "dead.dtype of norm.rms: not of the contract: int8"));
}

// Every architecture that rows name is that of a device: a simulated one, or the CPU's instruction sets.
std::vector<std::string> DeadArchitectures(const std::vector<const KernelEntry*>& kernels) {
  std::vector<std::string> dead;
  for (const KernelEntry* k : kernels) {
    const auto is_on = [&](const Device& device) {
      return std::ranges::all_of(k->rows, [&](const Row& row) {
        const bool on_device = IsHome(*k, row, FieldHome::kDevice) && row.code != ReasonCode::kNotBuilt;
        return !on_device || Holds(row.rel, device.facts[k->op->fields()[row.field].slot], row.operand, row.set);
      });
    };
    if (std::ranges::none_of(SimulatedDevices(), is_on)) dead.push_back(k->id + " of " + k->operation);
  }
  return dead;
}

TEST_F(Invariants, EveryKernelHasADevice) {
  EXPECT_THAT(DeadArchitectures(selector().registry().Kernels(nullptr)), testing::IsEmpty());
}

TEST_F(Invariants, AKernelWithoutADeviceIsFound) {
  Selector other;
  Add(other,
      R"({"schema_version": "1.0", "backend": "dead", "backend_version": "1", "platform": "cuda", "ops": {"norm.rms": [
    {"kernel_id": "dead.sm", "dtypes": ["float32"], "requires_layouts": ["any"], "min_sm": 999},
    {"kernel_id": "dead.undeclared", "dtypes": ["float32"], "requires_layouts": ["any"]},
    {"kernel_id": "dead.not", "dtypes": ["float32"], "requires_layouts": ["any"], "min_sm": 90}]}})");
  std::vector<const KernelEntry*> rows;
  for (const char* id : {"dead.sm", "dead.undeclared", "dead.not"}) {
    rows.push_back(other.registry().FindKernel("norm.rms", id));
  }
  EXPECT_THAT(DeadArchitectures(rows), testing::ElementsAre("dead.sm of norm.rms", "dead.undeclared of norm.rms"));
}

// Each kernel's verdict on a request: its reasons, or that it is admissible.
using Verdicts = std::map<std::string, std::string>;
Verdicts VerdictsOf(const Request& r, const Device& device, const OperationPolicy& policy) {
  Verdicts verdicts;
  for (const Candidate& c : Filter(r, VariantOf(r), device, policy)) {
    std::string text = c.admissible() ? "admissible" : "";
    for (const Reason& reason : c.reasons) {
      text += std::string(Info(reason.code).name) + " " + std::to_string(reason.wanted) + " " +
              std::to_string(reason.got) + "; ";
    }
    verdicts[c.kernel->id] = text;
  }
  return verdicts;
}

// No request has memory at its addresses, and the devices are not of this machine: a verdict reads neither.
TEST_F(Invariants, AnotherRowChangesNoVerdictAndNoVerdictReadsMemory) {
  Selector other;
  size_t compared = 0;
  for (const auto& op : selector().registry().operations()) {
    const OperationPolicy policy = PolicyOf(*op);
    std::vector<std::pair<Draft, std::vector<Verdicts>>> before;
    Random random(5 + op->index());
    const std::vector<Draft> seeds = Seeds(*op);
    for (int i = 0; i < kDrawn; ++i) {
      Draft d = random.Of(seeds);
      for (int64_t n = random.Below(4); n > 0; --n) d = Mutated(random, *op, std::move(d));
      d.device = 0, d.policy = 0;
      const auto built = Build(*op, d);
      if (!built) continue;
      auto& verdicts = before.emplace_back(std::move(d), std::vector<Verdicts>()).second;
      for (const Device& device : SimulatedDevices()) verdicts.push_back(VerdictsOf(built->r, device, policy));
    }
    const std::string_view id = op->contract().variants[0].id;
    nlohmann::json row = {{"kernel_id", "further." + std::string(op->name())},
                          {"dtypes", {"float32", "bfloat16"}},
                          {"requires_layouts", {"any"}},
                          {"min_sm", 80},
                          {"accepts", {"*"}},
                          {"requires_aligned", {{std::string(op->input(0).name), 16}}},
                          {"constraints", nlohmann::json::array()}};
    for (const std::string& axis : op->axes()) {  // classes are cut finer, predicates are added
      if (axis == "...") continue;
      row["constraints"].push_back({{"field", axis}, {"relation", "<="}, {"operand", 64}});
      row["constraints"].push_back({{"field", axis + " * 3 + 1"}, {"relation", "<="}, {"operand", 97}});
      break;
    }
    if (id.starts_with("attention.") && op->FindField("d_qk") && op->FindField("d_v")) row["max_head_dim"] = 64;
    if (!GroupedVariantOf(op->contract(), id).empty()) row["supports_gqa"] = true;
    Add(selector(), nlohmann::json{{"schema_version", "1.0"},
                                   {"backend", "further"},
                                   {"backend_version", "1"},
                                   {"platform", "cuda"},
                                   {"ops", {{std::string(id), {row}}}}}
                        .dump());
    for (const auto& [draft, verdicts] : before) {
      const auto built = Build(*op, draft);
      ASSERT_TRUE(built);
      for (size_t n = 0; n < verdicts.size(); ++n) {
        Verdicts now = VerdictsOf(built->r, SimulatedDevices()[n], policy);
        std::erase_if(now, [](const auto& one) { return one.first.starts_with("further."); });
        EXPECT_EQ(now, verdicts[n]) << op->name() << " on " << SimulatedDevices()[n].name;
        compared += now.size();
      }
    }
  }
  EXPECT_GT(compared, 50000u);
}

TEST_F(Invariants, AChangedVerdictIsSeen) {
  const Operation& op = *selector().registry().Find("attention");
  size_t differ = 0;
  ForRequests(op, kDrawn, [&](Request& r) {
    Device device = *FindSimulatedDevice("h100");
    const Verdicts one = VerdictsOf(r, device, PolicyOf(op));
    device.facts[size_t(DeviceField::kSm)] = 75;
    differ += one != VerdictsOf(r, device, PolicyOf(op));
    return true;
  });
  EXPECT_GT(differ, 0u);
}

TEST_F(Invariants, ReadingAnAddressOfARequestWouldBeSeen) {
  const Operation& op = *selector().registry().Find("norm.rms");
  const auto read = [&] {
    ForRequests(op, kDrawn, [](Request& r) {
      if (r.tensors[0].data) *static_cast<volatile char*>(r.tensors[0].data);
      return true;
    });
  };
  EXPECT_DEATH(read(), "");
}

// What names a kernel: a lock, as `kernel=` makes one, and a measured record that calls it the fastest.
TEST_F(Invariants, AnExplicitChoicePassesTheSameFilter) {
  size_t refused = 0, taken = 0;
  for (const auto& op : selector().registry().operations()) {
    ForRequests(*op, 12, [&](Request& r) {
      r.device = *selector().context().FindByName("h100");
      const Device& device = selector().context().device(r.device);
      r.machine = &device;
      RefreshFacts(r);
      r.facts.v[kSlotDevice] = r.device;
      for (const Candidate& c : Filter(r, VariantOf(r), device, PolicyOf(*op))) {
        selector().set_measurements([&](const KernelEntry& k, const BoundCall&) {
          return std::optional(Measurement{.median_us = &k == c.kernel ? 1.0 : 100.0, .confidence = 1});
        });
        auto measured = selector().Explain(r);
        EXPECT_TRUE(measured.ok());
        if (!measured.ok()) return false;
        const Candidate* winner = measured->winner < 0 ? nullptr : &measured->candidates[size_t(measured->winner)];
        EXPECT_TRUE(!winner || winner->admissible());
        EXPECT_TRUE(c.admissible() || !winner || winner->kernel != c.kernel) << c.kernel->id;
        selector().set_measurements({});
        const nlohmann::json lock = {{"locks", {{std::string(c.kernel->operation), c.kernel->id}}}};
        const int64_t policy = r.policy;
        auto scope = selector().policies().Scope(0, lock.dump());
        EXPECT_TRUE(scope.ok()) << scope.status().Text();
        if (!scope.ok()) return false;
        r.policy = *scope;
        auto locked = selector().Explain(r);
        r.policy = policy;
        EXPECT_TRUE(locked.ok());
        if (!locked.ok()) return false;
        EXPECT_EQ(locked->winner >= 0, c.admissible()) << c.kernel->id;
        (c.admissible() ? taken : refused) += 1;
      }
      return true;
    });
  }
  EXPECT_GT(refused, 500u);
  EXPECT_GT(taken, 50u);
}

// "The binary has no code for this GPU", a rule, policy and "slower" are four answers.
TEST_F(Invariants, ReasonsOfDifferentKindsDiffer) {
  Selector other;
  static constexpr auto kSet = std::to_array<int64_t>({100});
  static constexpr auto kNoCode = std::to_array<Constraint>(
      {{.field = "device.sm", .rel = Rel::kInSet, .set = kSet, .code = ReasonCode::kNotBuilt}});
  static constexpr auto kTooOld = std::to_array<Constraint>({{.field = "device.sm", .rel = Rel::kGe, .operand = 100}});
  const auto kernel = [](std::string_view id, int32_t priority, std::span<const Constraint> rows = {}) {
    return KernelSpec{.id = id,
                      .operation = "norm.rms",
                      .platform = Platform::kCuda,
                      .dtypes = Mask(DType::kF32),
                      .constraints = rows,
                      .accepts = kAcceptsAll,
                      .strides = Strides::kAny,
                      .priority = priority,
                      .deterministic = true,
                      .cuda_graph_safe = true,
                      .requires_grad = true};
  };
  const auto specs = std::to_array<KernelSpec>({kernel("a.no_code", 50, kNoCode), kernel("a.rule", 50, kTooOld),
                                                kernel("a.denied", 50), kernel("a.slower", 10), kernel("a.best", 99)});
  std::vector<Registry::Registration> rows;
  for (const KernelSpec& spec : specs) rows.push_back({&spec, {}, {}});
  ASSERT_TRUE(other.registry().Register(rows).ok());
  ASSERT_TRUE(other.policies().Configure(R"({"rules": [{"deny": ["a.denied"]}]})").ok());
  auto c = ParseCase(*other.registry().Find("norm.rms"), "input=f32[4,64] weight=f32[64]");
  ASSERT_TRUE(c.ok()) << c.status().Text();
  Request r = c->MakeRequest();
  r.device = *other.context().FindByName("h100");
  ASSERT_TRUE(other.Bind(r).ok());
  auto report = other.Explain(r);
  ASSERT_TRUE(report.ok()) << report.status().Text();
  std::map<std::string, std::vector<std::string_view>> codes;
  for (const Candidate& candidate : report->candidates) {
    auto& own = codes[candidate.kernel->id];
    for (const Reason& reason : candidate.reasons) own.push_back(Info(reason.code).name);
  }
  EXPECT_THAT(codes["a.no_code"], testing::ElementsAre("NOT_BUILT"));
  EXPECT_THAT(codes["a.rule"], testing::ElementsAre("SM_TOO_OLD"));
  EXPECT_THAT(codes["a.denied"], testing::ElementsAre("POLICY_DENIED"));
  EXPECT_THAT(codes["a.slower"], testing::IsEmpty());
  ASSERT_GE(report->winner, 0);
  EXPECT_EQ(report->candidates[size_t(report->winner)].kernel->id, "a.best");
}

}  // namespace
}  // namespace lz::verify
