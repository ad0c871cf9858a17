// Soundness of classes: requests with equal keys satisfy exactly the same rows of all kernels, variants and policies; a
// inline cache holds a request exactly when its class is the same; the table agrees with it. On random registries.
#include <gtest/gtest.h>

#include <deque>

#include "pipeline/cache.h"
#include "pipeline/filter.h"
#include "pipeline/plan.h"
#include "tests/pipeline/random_requests.h"

namespace lz {
namespace {
using namespace testing_requests;

constexpr int kRegistries = 3000, kRequests = 24;

// Owns what constraints point to.
struct Texts {
  std::deque<std::string> names;
  std::deque<std::vector<int64_t>> sets;
};

int64_t RandomOperand(Random& random) {
  static constexpr int64_t kEdges[] = {0,
                                       1,
                                       -1,
                                       kInt32Max - 1,
                                       kInt32Max,
                                       kInt32Max + 1,
                                       -kInt32Max,
                                       -kInt32Max - 1,
                                       -kInt32Max - 2,
                                       int64_t{1} << 33,
                                       std::numeric_limits<int64_t>::max(),
                                       std::numeric_limits<int64_t>::min()};
  if (random.Chance(15)) return random.Of(kEdges);
  return random.Of(kSmallSizes) + random.Below(3) - 1;
}

std::string RandomExpression(Random& random, const Operation& op) {
  std::vector<std::string> names;
  for (const std::string& axis : op.axes()) {
    if (axis != "...") names.push_back(axis);
  }
  if (names.empty()) return {};
  static constexpr std::string_view kOperators[] = {" + ", " - ", " * ", " / "};
  std::string text = random.Of(names);
  text += random.Of(kOperators);
  text += random.Chance(50) ? random.Of(names) : std::to_string(random.Below(9));
  return random.Chance(30) ? "(" + text + ") * 2" : text;
}

Constraint RandomRow(Random& random, const Operation& op, Texts* texts) {
  static constexpr Rel kAll[] = {Rel::kEq,         Rel::kNe,     Rel::kGe,    Rel::kGt,      Rel::kLe,       Rel::kLt,
                                 Rel::kMultipleOf, Rel::kInMask, Rel::kInSet, Rel::kHasBits, Rel::kLacksBits};
  Constraint c;
  std::string name = op.fields()[size_t(random.Below(int64_t(op.fields().size())))].name;
  if (random.Chance(35)) {
    const std::string expression = RandomExpression(random, op);
    if (!expression.empty()) name = expression;
  }
  c.field = texts->names.emplace_back(std::move(name));
  c.rel = random.Of(kAll);
  if (c.rel != Rel::kInSet && random.Chance(20)) {
    const Field& fact = op.fields()[size_t(random.Below(int64_t(op.fields().size())))];
    const auto field = op.FindField(c.field);
    const bool number = !field || (op.fields()[*field].is_range() && op.fields()[*field].type != FieldType::kChoice);
    const bool of_policy = fact.home == FieldHome::kPolicy && !number;
    if (fact.home == FieldHome::kDevice || of_policy) {
      c.fact = fact.name;
      return c;
    }
  }
  c.operand = c.rel == Rel::kInMask ? random.Below(1 << 20) : RandomOperand(random);
  if (c.rel == Rel::kMultipleOf) c.operand = random.Chance(90) ? 1 + random.Below(64) : 0;
  if (c.rel == Rel::kInSet) {
    auto& set = texts->sets.emplace_back();
    for (int64_t n = 1 + random.Below(4); n > 0; --n) set.push_back(RandomOperand(random));
    c.set = set;
  }
  return c;
}

void RegisterRandomKernels(Random& random, Registry& registry, const Operation& op, Texts* texts) {
  const int64_t count = 1 + random.Below(5);
  for (int64_t k = 0; k < count; ++k) {
    std::vector<Constraint> rows;
    for (int64_t n = random.Below(9); n > 0; --n) rows.push_back(RandomRow(random, op, texts));
    std::vector<std::string_view> accepts;
    for (const Param& p : op.contract().params) {
      if (random.Chance(60)) accepts.push_back(p.name);
    }
    KernelSpec spec;
    spec.id = texts->names.emplace_back("random.k" + std::to_string(k));
    spec.operation = random.Of(op.contract().variants).id;
    spec.platform = random.Chance(70) ? Platform::kCpu : Platform::kAny;
    spec.dtypes = op.num_inputs() ? op.input(0).dtypes & DTypeMask(random.Below(1 << 16)) : 0;
    if (spec.dtypes == 0) spec.dtypes = kAnyDType;
    spec.constraints = rows;
    spec.accepts = accepts;
    spec.strides = Strides(random.Below(3));
    spec.deterministic = random.Chance(50);
    spec.cuda_graph_safe = random.Chance(50);
    spec.requires_grad = random.Chance(50);
    const Registry::Registration registration{&spec, {}, {}};
    // More than 64 predicates are refused: such a draw adds nothing.
    Status status = registry.Register({&registration, 1});
    if (status.ok()) continue;
    ASSERT_NE(status.Text().find("64 predicates"), std::string::npos) << status.Text();
  }
}

// The value of a row's field by the words of the contract, without fact slots; nullopt where only the facts have it.
std::optional<int64_t> Oracle(const Request& r, const Row& row) {
  const Operation& op = *r.op;
  const std::string& name = row.field_name;
  for (size_t a = 0; a < op.axes().size(); ++a) {
    if (op.axes()[a] == name) return r.variables[a];
  }
  for (size_t i = 0; i < op.derived().size(); ++i) {
    if (op.contract().derived[i].name == name) return op.derived()[i].Evaluate(r.variables.data());
  }
  if (name == "capturing") return r.flags & 1;
  if (name == "requires_grad") return r.flags >> 1 & 1;
  if (name == "layout") return r.layout;
  if (name == "dtype") return int64_t(DTypeOf(r.tensors[0]));
  if (const auto s = op.ScalarIndex(name); s && row.predicate < 0) {
    const ParamKind kind = op.scalar(*s).kind;
    if (kind == ParamKind::kInt) return r.scalars[*s].given ? r.scalars[*s].value.i : -1;
    if (kind != ParamKind::kFloat) return r.scalars[*s].given ? r.scalars[*s].value.i : 0;
  }
  const size_t dot = name.rfind('.');
  const auto input = dot == name.npos ? std::nullopt : op.InputIndex(name.substr(0, dot));
  if (!input) return std::nullopt;
  const lz_tensor& t = r.tensors[*input];
  const std::string suffix = name.substr(dot + 1);
  if (suffix == "given") return t.ndim >= 0;
  if (suffix == "dtype") return t.ndim >= 0 ? int64_t(DTypeOf(t)) : 0;
  if (suffix == "ndim") return std::max(0, t.ndim);
  if (suffix == "same_dtype") return t.ndim < 0 || DTypeOf(t) == DTypeOf(r.tensors[0]);
  return std::nullopt;
}

class Soundness {
 public:
  explicit Soundness(uint64_t seed) : seed_(seed), random_(seed) {}

  void Run() {
    SCOPED_TRACE("seed " + std::to_string(seed_));
    const Operation& op = *random_.Of(registry_.operations());
    RegisterRandomKernels(random_, registry_, op, &texts_);
    std::vector<Constraint> watched;
    for (int64_t n = random_.Below(4); n > 0; --n) watched.push_back(RandomRow(random_, op, &texts_));
    auto rows = registry_.AddThresholds(op, watched);
    if (rows.ok()) rows_ = **rows, thresholds_ = std::move(*rows);
    for (const KernelEntry* k : registry_.Kernels(&op)) rows_.insert(rows_.end(), k->rows.begin(), k->rows.end());
    for (const auto& v : op.state().variant_conditions) rows_.insert(rows_.end(), v.begin(), v.end());
    for (Device& machine : machines_) {
      for (int64_t& f : machine.facts) f = RandomOperand(random_);
    }
    for (auto& facts : policy_facts_) {
      for (int64_t& f : facts) f = random_.Below(8);
    }
    MakeRequests(op);
    for (const auto& built : requests_) CheckTruth(built->r);
    for (size_t a = 0; a < requests_.size(); ++a) {
      for (size_t b = 0; b < requests_.size() && !testing::Test::HasFailure(); ++b) CheckPair(op, a, b);
    }
  }
  uint64_t pairs = 0, equal = 0, holding = 0;

 private:
  void MakeRequests(const Operation& op) {
    Draft draft = RandomDraft(random_, op);
    for (int tries = 0; tries < 12 * kRequests && int(requests_.size()) < kRequests; ++tries) {
      Draft next = random_.Chance(25) ? RandomDraft(random_, op) : Mutated(random_, op, draft);
      if (random_.Chance(5)) next = draft;
      auto built = Build(op, next);
      if (!built) continue;
      built->r.machine = &machines_[size_t(built->r.device)];
      RefreshFacts(built->r);
      draft = std::move(next);
      Facts& key = keys_.emplace_back();
      Hot().classify(op.state().classifier, built->r.facts, &key);
      requests_.push_back(std::move(built));
    }
  }
  bool Truth(const Request& r, const Row& row) const {  // as filter sees it
    return RowHolds(r, row, {machines_[size_t(r.device)].facts, policy_facts_[size_t(r.policy)]});
  }
  int64_t FactOf(const Request& r, const Row& row) const {
    const Field& f = r.op->fields()[size_t(row.fact)];
    return f.home == FieldHome::kDevice ? machines_[size_t(r.device)].facts[f.slot]
                                        : policy_facts_[size_t(r.policy)][f.slot];
  }
  void CheckTruth(const Request& r) {
    for (const Row& row : rows_) {
      const auto value = Oracle(r, row);
      if (!value) continue;
      holding += Truth(r, row);
      const int64_t operand = row.fact < 0 ? row.operand : FactOf(r, row);
      ASSERT_EQ(Truth(r, row), Holds(row.rel, *value, operand, row.set))
          << r.op->name() << ": row '" << row.field_name << " " << RelText(row.rel) << " " << row.operand
          << "' of value " << *value;
    }
  }
  void CheckPair(const Operation& op, size_t a, size_t b) {
    const Request &ra = requests_[a]->r, &rb = requests_[b]->r;
    const Classifier& classifier = op.state().classifier;
    const bool same = Hot().equal(keys_[a], keys_[b]);
    ++pairs;
    equal += same && a != b;
    InlineCache site;
    classifier.RangeOf(ra.facts, &site.lo, &site.hi);
    static const Plan plan;
    Epochs epochs;
    site.generation = epochs.Generation();
    site.plan = &plan;
    ASSERT_EQ(LookupInline(site, rb.facts, epochs) == &plan, same) << op.name() << ": requests " << a << " and " << b;
    PlanCache cache(epochs);
    Facts key;
    uint64_t hash;
    ASSERT_EQ(cache.Find(classifier, ra.facts, &key, &hash), nullptr);
    cache.Insert(key, hash, epochs.Current(), &plan, 100);
    ASSERT_EQ(cache.Find(classifier, rb.facts, &key, &hash) != nullptr, same) << "requests " << a << " and " << b;
    if (!same) return;
    ASSERT_EQ(VariantOf(ra), VariantOf(rb));
    for (const Row& row : rows_) {
      ASSERT_EQ(Truth(ra, row), Truth(rb, row))
          << op.name() << ": equal keys, but row '" << row.field_name << " " << RelText(row.rel) << " " << row.operand
          << "' differs between requests " << a << " and " << b;
    }
  }

  uint64_t seed_;
  Random random_;
  Registry registry_;
  Texts texts_;
  std::vector<Row> rows_;
  std::vector<std::unique_ptr<BuiltRequest>> requests_;
  std::deque<Facts> keys_;
  Registry::Thresholds thresholds_;
  std::array<Device, 2> machines_;
  std::array<PolicyFacts, 2> policy_facts_{};
};

// A failing seed alone: Soundness(seed).Run().
TEST(ClassifierProperty, EqualKeysMeanEqualRows) {
  uint64_t pairs = 0, equal = 0, holding = 0;
  for (int i = 0; i < kRegistries && !HasFailure(); ++i) {
    Soundness soundness(uint64_t(i) + 1);
    soundness.Run();
    pairs += soundness.pairs;
    equal += soundness.equal;
    holding += soundness.holding;
  }
  std::cout << kRegistries << " registries, " << pairs << " pairs, " << equal << " of equal class, " << holding
            << " rows that hold\n";
  EXPECT_GT(equal, pairs / 100) << "the generator makes too few equal pairs to mean anything";
}

}  // namespace
}  // namespace lz
