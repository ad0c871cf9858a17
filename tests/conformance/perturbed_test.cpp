// Positive controls of every operation: its own reference with a fault planted must be caught by its cases, and without
// one must pass them. A tolerance that is too wide for an operation, a dtype or a numerics class shows here.
#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <set>

#include "core/view.h"
#include "tests/conformance/summary.h"
#include "verify/numerics.h"
#include "verify/run.h"

namespace lz::verify {
namespace {

enum class Fault : uint8_t {
  kNone,
  kBeyondTolerance,  // the last element, by 1.5 of its bound; of what is no float one bit
  kUnwritten,  // stays as it was before the call: the last element; of integers the first (a last -1 may be right)
  kErrorCode,  // returns one, after all the work
};
constexpr std::array<std::string_view, 4> kFaultNames = {"none", "beyond_tolerance", "unwritten", "error_code"};

// What the planted kernel runs as. A launch function has no state of its own.
struct Plant {
  const Operation* op = nullptr;
  const KernelEntry* reference = nullptr;
  const NumericsBounds* numerics = nullptr;
  Fault fault = Fault::kNone;
  size_t target = 0;             // the tensor that the fault is in
  DType done = DType::kUnknown;  // the dtype of what was changed
} g_plant;

bool IsFloating(DType type) { return kFloats >> int(type) & 1; }

char* At(const lz_tensor& t, int64_t flat) {
  return static_cast<char*>(t.data) + t.byte_offset + ElementOffset(t, flat) * ByteSize(DTypeOf(t));
}

// What the planted output may differ by.
double BoundAt(const View& out, std::string_view name, double value) {
  const Tolerance& tolerance = g_plant.op->contract().tolerance;
  double largest = 0;
  for (int64_t i = 0; i < out.numel(); ++i) {  // an upper bound of every row's: outputs of this harness are row-major
    if (std::isfinite(out.Load(i))) largest = std::max(largest, std::fabs(out.Load(i)));
  }
  const bool by_class = g_plant.numerics && (out.dtype() == DType::kF32 || out.dtype() == DType::kBF16);
  if (by_class && name == "lse") return g_plant.numerics->lse * std::max(1.0, std::fabs(value));
  if (by_class) return (out.dtype() == DType::kF32 ? g_plant.numerics->f32 : g_plant.numerics->bf16).row_max * largest;
  const double bound = BoundOf(tolerance, out.dtype());
  return tolerance.compare == lz::Compare::kElementwise ? bound * (1 + std::fabs(value)) : bound * largest;
}

void MoveLast(const lz_tensor& t, std::string_view name) {
  const View out(t);
  const int64_t last = out.numel() - 1;
  if (!IsFloating(out.dtype())) {
    *At(t, last) ^= 1;
    return;
  }
  const int64_t at = ElementOffset(t, last);
  const double value = out.Load(at);
  // Above half a step of the dtype, so that the move survives storing.
  const double step = out.dtype() == DType::kBF16 ? 0x1p-7 : out.dtype() == DType::kF16 ? 0x1p-10 : 0;
  out.Store(at, value + std::max(1.5 * BoundAt(out, name, value), step * std::fabs(value)));
}

int32_t Launch(const lz_kernel_args* args) {
  const size_t inputs = g_plant.op->num_inputs();
  const lz_tensor& t = args->tensors[g_plant.target];
  g_plant.done = DType::kUnknown;
  const bool written = t.ndim >= 0 && View(t).numel() > 0;
  const int64_t size = written ? View(t).numel() : 0, item = ByteSize(DTypeOf(t));
  std::vector<char> before(size_t(size * item));
  for (int64_t i = 0; i < size; ++i) std::copy_n(At(t, i), item, &before[size_t(i * item)]);
  if (const int32_t code = g_plant.reference->spec.launch(args); code != 0) return code;
  if (written) g_plant.done = DTypeOf(t);
  const bool in_place = g_plant.target < inputs;
  if (g_plant.fault == Fault::kBeyondTolerance && written) {
    MoveLast(t, in_place ? "" : g_plant.op->contract().outputs[g_plant.target - inputs].name);
  }
  if (g_plant.fault == Fault::kUnwritten && written) {
    const int64_t first = in_place || !IsFloating(DTypeOf(t)) ? 0 : size - 1, end = in_place ? size : first + 1;
    for (int64_t i = first; i < end; ++i) std::copy_n(&before[size_t(i * item)], item, At(t, i));
  }
  return g_plant.fault == Fault::kErrorCode;
}

const KernelEntry* ReferenceOf(Registry& registry, std::string_view operation) {
  for (const KernelEntry* k : registry.Kernels(nullptr)) {
    if (k->operation == operation && k->spec.reference && k->spec.call == CallKind::kNative && k->spec.launch) return k;
  }
  return nullptr;
}

// The planted kernel of one operation under one numerics class ("": the contract's tolerance), registered on first use.
const KernelEntry* Planted(const KernelEntry& reference, std::string_view numerics) {
  static std::list<std::string> texts;
  Registry& registry = Engine::Get().selector().registry();
  const std::string id =
      "planted.perturbed." + reference.operation + (numerics.empty() ? "" : ".") + std::string(numerics);
  if (const KernelEntry* known = registry.FindKernel(reference.operation, id)) return known;
  const KernelSpec& own = reference.spec;
  const KernelSpec spec = {.id = texts.emplace_back(id),
                           .operation = texts.emplace_back(reference.operation),
                           .dtypes = own.dtypes,
                           .accepts = kAcceptsAll,
                           .strides = Strides::kAny,
                           .priority = 0,
                           .deterministic = true,
                           .numerics = numerics,
                           .launch = &Launch};
  const std::vector<Registry::Registration> one = {{&spec, {}, {}}};
  const Status status = registry.Register(one);
  EXPECT_TRUE(status.ok()) << status.Text();
  return registry.FindKernel(reference.operation, id);
}

class PositiveControl : public testing::TestWithParam<std::string> {
 protected:
  const Operation& op() const { return *Engine::Get().Find(GetParam()); }

  // Cases of one variant, those with small results first.
  std::vector<Case> CasesOfVariant(int variant) {
    std::vector<std::pair<int64_t, Case>> sized;
    for (const CaseLine& line : CasesOf(op())) {
      auto c = ParseCase(op(), line.text);
      if (line.refuses() || !c.ok()) continue;
      Request r = c->MakeRequest();
      if (!Engine::Get().Bind(r).ok() || VariantOf(r) != variant) continue;
      int64_t size = 1;
      for (const OwnedTensor& t : c->tensors) size += t.numel();
      sized.emplace_back(size, std::move(*c));
    }
    std::ranges::stable_sort(sized, {}, [](const auto& one) { return one.first; });
    std::vector<Case> cases;
    for (auto& one : sized) cases.push_back(std::move(one.second));
    return cases;
  }

  // Tensors that the operation writes.
  std::vector<size_t> Targets() const {
    std::vector<size_t> targets;
    for (size_t i = 0; i < op().num_inputs(); ++i) {
      if (op().input(i).mutated) targets.push_back(i);
    }
    for (size_t o = 0; o < op().num_outputs(); ++o) targets.push_back(op().num_inputs() + o);
    return targets;
  }
  std::string_view NameOf(size_t target) const {
    const size_t inputs = op().num_inputs();
    return target < inputs ? op().input(target).name : op().contract().outputs[target - inputs].name;
  }

  Verdict Run(const Case& original, const KernelEntry& planted, std::string* text) {
    Case c = original;
    const CaseResult result = RunCase(Engine::Get(), c, planted);
    *text = original.text + "\n  " + result.text;
    return result.verdict;
  }

  // Plants one fault: each dtype of the target that the cases have must be caught by one of them.
  void Plant(const std::vector<Case>& cases, const KernelEntry& planted, Fault fault, size_t target) {
    g_plant.fault = fault;
    g_plant.target = target;
    std::set<DType> caught, missed;
    for (const Case& c : cases) {
      std::string text;
      const Verdict verdict = Run(c, planted, &text);
      if (g_plant.done == DType::kUnknown || verdict == Verdict::kNotAdmitted) continue;
      (verdict == Verdict::kFailed ? caught : missed).insert(g_plant.done);
      if (caught.size() == DTypesIn(cases, target) && fault == Fault::kBeyondTolerance) break;
      if (!caught.empty() && fault != Fault::kBeyondTolerance) break;
    }
    if (fault != Fault::kBeyondTolerance && !caught.empty()) missed.clear();
    missed.insert(caught.begin(), caught.end());
    for (const DType dtype : missed) {
      const std::string name = planted.id.substr(planted.id.find('.') + 1) + "/" + std::string(NameOf(target)) + "/" +
                               std::string(kFaultNames[size_t(fault)]) + "/" + std::string(Info(dtype).name);
      Summary::Get().planted[name] = caught.contains(dtype);
      EXPECT_TRUE(caught.contains(dtype)) << name << " was not caught";
    }
    EXPECT_FALSE(missed.empty()) << planted.id << ": no case writes " << NameOf(target);
  }

  size_t DTypesIn(const std::vector<Case>& cases, size_t target) {
    std::set<DType> dtypes;
    const size_t inputs = op().num_inputs();
    for (Case c : cases) {
      Request r = c.MakeRequest();
      if (!Engine::Get().Bind(r).ok()) continue;
      if (target < inputs) {
        if (c.tensors[target].numel() > 0) dtypes.insert(c.tensors[target].dtype());
        continue;
      }
      const OutputShape& shape = r.outputs[target - inputs];
      if (shape.ndim >= 0 && std::count(shape.shape, shape.shape + shape.ndim, 0) == 0) dtypes.insert(shape.dtype);
    }
    return dtypes.size();
  }
};

TEST_P(PositiveControl, EveryFaultIsCaught) {
  const auto& variants = op().contract().variants;
  for (size_t v = 0; v < variants.size(); ++v) {
    const KernelEntry* reference = ReferenceOf(Engine::Get().selector().registry(), variants[v].id);
    ASSERT_NE(reference, nullptr) << variants[v].id;
    const std::vector<Case> cases = CasesOfVariant(int(v));
    ASSERT_FALSE(cases.empty()) << "no case of " << variants[v].id;
    std::vector<std::string_view> classes = {""};
    for (std::string_view name : op().contract().numerics_classes) classes.push_back(name);
    for (const std::string_view numerics : classes) {
      g_plant = {.op = &op(), .reference = reference, .numerics = FindNumerics(numerics)};
      const KernelEntry* planted = Planted(*reference, numerics);
      ASSERT_NE(planted, nullptr);
      for (const size_t target : Targets()) {
        g_plant.target = target;
        Plant(cases, *planted, Fault::kBeyondTolerance, target);
        if (!numerics.empty()) continue;
        Plant(cases, *planted, Fault::kUnwritten, target);
      }
      if (numerics.empty()) Plant(cases, *planted, Fault::kErrorCode, Targets().front());
      g_plant.fault = Fault::kNone;
      std::string text;
      for (size_t i = 0; i < std::min<size_t>(cases.size(), 8); ++i) {
        EXPECT_NE(Run(cases[i], *planted, &text), Verdict::kFailed) << "without a fault: " << text;
      }
    }
  }
}

// The check that stands for an operation: its first case that its reference passes.
struct Check {
  const Operation* op;
  std::string line;
  const KernelEntry* reference;
  Verdict Run() const {
    auto c = ParseCase(*op, line);
    return RunCase(Engine::Get(), *c, *reference).verdict;
  }
};

Check FirstCheck(const Operation& op) {
  Registry& registry = Engine::Get().selector().registry();
  for (const CaseLine& line : CasesOf(op)) {
    if (line.refuses() || !ParseCase(op, line.text).ok()) continue;
    for (const Variant& variant : op.contract().variants) {
      Check check = {&op, line.text, ReferenceOf(registry, variant.id)};
      if (check.Run() == Verdict::kPassed) return check;
    }
  }
  ADD_FAILURE() << "no case passes: " << op.name();
  return {&op, "", nullptr};
}

const std::vector<Check>& Checks() {
  static const auto* checks = [] {
    auto* all = new std::vector<Check>;
    for (const auto& op : Engine::Get().operations()) all->push_back(FirstCheck(*op));
    return all;
  }();
  return *checks;
}

// A fault that is planted in one operation is found in no other.
TEST_P(PositiveControl, NoOtherOperationFails) {
  const auto self = std::ranges::find(Checks(), &op(), &Check::op);
  ASSERT_NE(self->reference, nullptr);
  g_plant = {.op = &op(), .reference = self->reference, .fault = Fault::kErrorCode, .target = Targets().front()};
  const KernelEntry* planted = Planted(*self->reference, "");
  ASSERT_NE(planted, nullptr);
  for (Check check : Checks()) {
    if (check.op == &op()) check.reference = planted;
    EXPECT_EQ(check.Run() == Verdict::kFailed, check.op == &op()) << check.op->name() << ": " << check.line;
  }
}
INSTANTIATE_TEST_SUITE_P(All, PositiveControl, testing::ValuesIn(OperationNames()),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace lz::verify
