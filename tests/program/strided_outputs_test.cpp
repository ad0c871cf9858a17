// Programs let kernels write into strided memory (rows of a cache, columns of a row) where the kernel's strides say
// that it may. Here every such kernel writes the outputs of its operation's cases into memory with gaps.
#include "../conformance/case_files.h"
#include "program/run.h"
#include "program_fixture.h"

namespace lz {
namespace {

using verify::CaseLine;
using verify::CasesOf;
constexpr int kAdd = 0, kMul = 2;  // functions of `elementwise`
constexpr size_t kCases = 40;      // of an operation, at equal distances among all of them

// Last axis dense; the axes before lie in memory in reverse, each with room behind.
OwnedTensor WithGaps(const OutputShape& shape) {
  std::vector<int64_t> strides(size_t(shape.ndim), 1);
  int64_t stride = shape.ndim ? shape.physical[shape.ndim - 1] + 5 : 1;
  for (int32_t d = 0; d + 1 < shape.ndim; ++d) {
    strides[size_t(d)] = stride;
    stride *= shape.physical[d] + 1;
  }
  return OwnedTensor(shape.dtype, {shape.physical, shape.physical + shape.ndim}, strides);
}

class StridedOutputs : public ProgramFixture {
 protected:
  // "" or what is wrong. Sets `*tried` where the kernel took the call.
  std::string Compare(const Operation& op, const std::string& line, const KernelEntry& kernel, bool* tried) {
    auto c = verify::ParseCase(op, line);
    if (!c.ok() || c->layout > 0) return {};
    const auto scope = engine.PolicyScope(0, R"({"locks": {")" + kernel.operation + R"(": ")" + kernel.id + R"("}})");
    if (!scope.ok()) return scope.status().Text();
    Request r = c->MakeRequest();
    r.policy = *scope;
    if (!engine.Bind(r).ok()) return {};
    auto plan = engine.Select(r);
    if (!plan.ok() || (*plan)->kernel != &kernel || !TakesStridedOutputs(**plan)) return {};
    std::vector<OwnedTensor> dense, gaps;
    for (size_t o = 0; o < op.num_outputs(); ++o) {
      const OutputShape& shape = r.outputs[o];
      dense.push_back(shape.ndim < 0
                          ? OwnedTensor()
                          : OwnedTensor::RowMajor(shape.dtype, {shape.physical, shape.physical + shape.ndim}));
      gaps.push_back(shape.ndim < 0 ? OwnedTensor() : WithGaps(shape));
    }
    for (auto* outputs : {&dense, &gaps}) {
      for (size_t o = 0; o < op.num_outputs(); ++o) {
        if ((*outputs)[o].given()) r.tensors[op.num_inputs() + o] = (*outputs)[o].tensor();
      }
      if (const Status status = engine.Run(**plan, r); !status.ok()) return outputs == &dense ? "" : status.Text();
    }
    *tried = true;
    for (size_t o = 0; o < op.num_outputs(); ++o) {
      if (!dense[o].given()) continue;
      if (!gaps[o].GuardsIntact()) return "wrote into a gap";
      const auto wanted = Values(dense[o]), got = Values(gaps[o]);
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (wanted[i] == got[i] || (wanted[i] != wanted[i] && got[i] != got[i])) continue;
        return "element " + std::to_string(i) + ": " + std::to_string(wanted[i]) + " and " + std::to_string(got[i]);
      }
    }
    return {};
  }
};

TEST_F(StridedOutputs, AreWrittenAsDenseOnesAre) {
  size_t tried = 0;
  for (const KernelEntry* kernel : verify::NativeKernels(engine)) {
    if (kernel->spec.strides == Strides::kContiguous || kernel->spec.platform == Platform::kCuda) continue;
    for (const auto& op : engine.operations()) {
      const auto& variants = op->contract().variants;
      if (std::none_of(variants.begin(), variants.end(), [&](const Variant& v) { return v.id == kernel->operation; })) {
        continue;
      }
      if (op->mutated_inputs() || op->contract().tolerance.compare == Compare::kToken) continue;
      const std::vector<CaseLine>& lines = CasesOf(*op);
      const size_t step = std::max<size_t>(1, lines.size() / kCases);
      for (size_t i = 0; i < lines.size(); i += step) {
        if (lines[i].refuses()) continue;
        bool ran = false;
        const std::string wrong = Compare(*op, lines[i].text, *kernel, &ran);
        tried += ran;
        EXPECT_EQ(wrong, "") << kernel->id << ": " << lines[i].Where();
        if (!wrong.empty()) break;
      }
    }
  }
  EXPECT_GT(tried, 500u);
}

class StepsApart : public ProgramFixture {};

// Two parts of each of 3 heads, made by a step each: a head's rotated columns behind the others.
TEST_F(StepsApart, EntriesThatLieApartAreWrittenOneByOne) {
  const Operand x = Input(), both = Rows(24), y = Output(24);
  Step("elementwise", {x, x}, {Apart(both, 0, {3, 4}, 8)}, {{"function", kAdd}});
  Step("elementwise", {x, x}, {Apart(both, 4, {3, 4}, 8)}, {{"function", kMul}});
  Step("elementwise", {both, both}, {y}, {{"function", kAdd}});
  const auto program = Make();
  OwnedTensor &in = Tensor({2, 3, 3, 4}, 5), &out = Tensor({2, 3, 24});
  const Status status = Run(*program, {&in}, {&out});
  ASSERT_TRUE(status.ok()) << status.Text();
  const auto a = Values(in), b = Values(out);
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t at = i / 4 * 8 + i % 4;
    EXPECT_EQ(b[at], float(2 * float(2 * float(a[i]))));
    EXPECT_EQ(b[at + 4], float(2 * float(float(a[i]) * float(a[i]))));
  }
}

}  // namespace
}  // namespace lz
