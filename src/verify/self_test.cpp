#include "verify/self_test.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace lz::verify {
namespace {

constexpr int kDraws = 96, kEnough = 12;
constexpr int64_t kLargest = 4096, kMaxElements = 1 << 18;

// Draws calls as lines of a .cases file.
class Draw {
 public:
  Draw(const KernelEntry& kernel, uint32_t seed) : kernel_(kernel), op_(*kernel.op), random_(seed) {}

  // Returns nullopt if the contract has a shape that no line can be drawn for, or the sizes do not fit it.
  std::optional<std::string> Line() {
    std::vector<int64_t> values(kMaxAxes + kMaxScalars + kMaxAxes, 0);
    for (size_t a = 0; a < op_.axes().size(); ++a) values[a] = Size(op_.axes()[a]);
    std::string line;
    for (size_t i = 0; i < op_.num_scalars(); ++i) Scalar(i, &values, &line);
    const DType first = FirstDType();
    for (size_t i = 0; i < op_.num_inputs(); ++i) {
      const Param& p = op_.input(i);
      if (p.optional && Below(2)) continue;
      const ShapeProgram& program = op_.input_shapes()[i];
      if (program.any_rank) {
        if (p.optional) continue;
        return std::nullopt;
      }
      std::string dims;
      int64_t elements = 1;
      const auto add = [&](int64_t size) {
        dims += (dims.empty() ? "" : ",") + std::to_string(size);
        elements *= size;
        return size >= 0 && elements <= kMaxElements;
      };
      if (program.leading && !add(values[size_t(op_.leading_axis())])) return std::nullopt;
      for (const Dim& dim : program.dims) {
        const int64_t size = dim.kind == Dim::Kind::kAxis ? values[size_t(dim.axis)]
                             : dim.kind == Dim::Kind::kAny
                                 ? Size("_")
                                 : op_.expressions()[size_t(dim.expression)].Evaluate(values.data());
        if (!add(size)) return std::nullopt;
      }
      const DType dtype = p.dtypes >> int(first) & 1 ? first : Lowest(p.dtypes);
      line += " " + std::string(p.name) + "=" + std::string(Info(dtype).short_name) + "[" + dims + "]";
    }
    return line;
  }

 private:
  int64_t Below(int64_t n) { return int64_t(random_() % uint64_t(n)); }
  static DType Lowest(DTypeMask mask) { return DType(std::countr_zero(mask)); }

  // A usual size, or one that a rule of the kernel names.
  int64_t Size(std::string_view axis) {
    std::vector<int64_t> sizes = {1, 2, 2, 3, 4, 4, 8, 8, 16, 17, 32, 64, 128};
    for (const Row& row : kernel_.rows) {
      const bool about = row.field_name == axis && row.operand >= 1 && row.operand <= kLargest;
      if (about) sizes.insert(sizes.end(), 12, row.operand);
      if (row.field_name == axis) sizes.insert(sizes.end(), row.set.begin(), row.set.end());
    }
    return sizes[size_t(Below(int64_t(sizes.size())))];
  }

  DType FirstDType() {
    DTypeMask mask = op_.num_inputs() ? op_.input(0).dtypes & kernel_.spec.dtypes : 0;
    for (int64_t skip = Below(std::max(1, std::popcount(mask))); skip > 0; --skip) mask &= mask - 1;
    return mask ? Lowest(mask) : DType::kUnknown;
  }

  void Scalar(size_t i, std::vector<int64_t>* values, std::string* line) {
    const Param& p = op_.scalar(i);
    if ((p.optional || p.has_default) && Below(3) != 0) {
      (*values)[kMaxAxes + i] = p.int_default;
      return;
    }
    *line += " " + std::string(p.name) + "=";
    switch (p.kind) {
      case ParamKind::kBool: *line += Below(2) ? "true" : "false"; break;
      case ParamKind::kChoice: *line += ChoiceName(p.choices, Below(1 + std::ranges::count(p.choices, '|'))); break;
      case ParamKind::kFloat: *line += Below(2) ? "0.5" : "1"; break;
      default: {
        const int64_t value = Size(p.name);
        (*values)[kMaxAxes + i] = value;
        *line += std::to_string(value);
      }
    }
  }

  const KernelEntry& kernel_;
  const Operation& op_;
  std::mt19937 random_;
};

const bool kTold = (Engine::SetVerifier(&SelfTest), true);

}  // namespace

Status SelfTest(Selector& selector, const KernelEntry& kernel) {
  Draw draw(kernel, 1);
  int passed = 0;
  for (int i = 0; i < kDraws && passed < kEnough; ++i) {
    const auto line = draw.Line();
    if (!line) continue;
    auto parsed = ParseCase(*kernel.op, *line);
    if (!parsed.ok()) continue;
    {  // calls that the contract refuses do not test the kernel
      Request r = parsed->MakeRequest();
      if (!selector.Bind(r).ok()) continue;
    }
    const CaseResult result = RunCase(selector, *parsed, kernel);
    passed += result.verdict == Verdict::kPassed;
    if (result.verdict != Verdict::kFailed) continue;
    return Status(StatusCode::kConfig,
                  {.field = "kernel " + kernel.id + " of " + kernel.operation,
                   .wanted = "the reference's results within the contract's tolerance",
                   .got = result.text + " on" + *line,
                   .fix = "correct the kernel, or declare in its constraints what it does not do"});
  }
  return {};
}

}  // namespace lz::verify
