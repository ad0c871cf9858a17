// Programs: what they compute is what their steps compute one by one, at every size, under every policy.
#include "program/program.h"

#include <gmock/gmock.h>

#include <atomic>
#include <random>
#include <thread>

#include "program_fixture.h"

namespace lz {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
constexpr int kAdd = 0, kMul = 2;  // functions of `elementwise`

// Random lists of sums and products over few widths, run with an arena and, for comparison, with values that are
// outputs and so have memory of their own.
class ProgramLiveness : public ProgramFixture, public testing::WithParamInterface<unsigned> {
 protected:
  using ProgramFixture::ProgramFixture;

  void Build(unsigned seed, bool arena, int num_outputs) {
    std::mt19937 random(seed);
    const auto pick = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
    constexpr int64_t kWidths[] = {1, 16, 17, 64};
    std::vector<std::vector<Operand>> live(std::size(kWidths));
    values.clear(), steps.clear();
    const Operand x[] = {Input(), Input(), Input(), Input()};
    for (size_t w = 0; w < std::size(kWidths); ++w) live[w].push_back(x[w]);
    for (int s = 0; s < 40; ++s) {
      const size_t w = pick(std::size(kWidths));
      const int64_t width = kWidths[w];
      const bool output = s >= 40 - num_outputs;
      const Operand out = output || !arena ? Output(width) : Rows(width);
      const Operand a = live[w][pick(live[w].size())], b = live[w][pick(live[w].size())];
      Step("elementwise", {a, b}, {out}, {{"function", pick(2) ? kMul : kAdd}, {"scale", 0.5}});
      if (live[w].size() > 3) live[w].erase(live[w].begin() + ptrdiff_t(pick(live[w].size())));
      live[w].push_back(out);
    }
  }
};

TEST_P(ProgramLiveness, ValuesThatLiveTogetherNeverShareMemory) {
  constexpr int kOutputs = 6;
  Build(GetParam(), false, kOutputs);
  const auto apart = Make();
  Build(GetParam(), true, kOutputs);
  const auto program = Make();
  ASSERT_TRUE(apart && program);

  std::vector<std::pair<size_t, size_t>> lives(values.size(), {SIZE_MAX, 0});
  for (size_t s = 0; s < steps.size(); ++s) {
    for (const auto* operands : {&steps[s].inputs, &steps[s].outputs}) {
      for (const Operand& o : *operands) {
        auto& [first, last] = lives[size_t(o.value)];
        first = std::min(first, s), last = std::max(last, s);
      }
    }
  }
  int64_t sum = 0;
  for (size_t a = 0; a < values.size(); ++a) {
    if (values[a].kind != ProgramValue::Kind::kRows) continue;
    const int64_t begin = program->place(int32_t(a)), end = begin + values[a].width * 4;
    sum += values[a].width * 4;
    EXPECT_LE(end, program->ArenaBytes(1));
    EXPECT_EQ(begin % 64, 0);
    for (size_t b = 0; b < a; ++b) {
      if (values[b].kind != ProgramValue::Kind::kRows) continue;
      if (lives[a].first > lives[b].second || lives[b].first > lives[a].second) continue;
      const int64_t other = program->place(int32_t(b));
      EXPECT_TRUE(end <= other || other + values[b].width * 4 <= begin) << a << " and " << b;
    }
  }
  EXPECT_LT(program->ArenaBytes(1), std::max<int64_t>(sum, 64 * 20));

  for (const auto& [batch, length] : {std::pair<int64_t, int64_t>{1, 1}, {2, 3}, {1, 7}}) {
    std::vector<OwnedTensor*> inputs, all, last;
    uint32_t seed = GetParam() + 1;
    for (int64_t width : {1, 16, 17, 64}) inputs.push_back(&Tensor({batch, length, width}, seed++));
    for (const ProgramStep& step : steps) {
      const int64_t width = values[size_t(step.outputs[0].value)].width;
      all.push_back(&Tensor({batch, length, width}));
      if (all.size() > steps.size() - kOutputs) last.push_back(&Tensor({batch, length, width}));
    }
    ASSERT_TRUE(Run(*apart, inputs, all).ok());
    ASSERT_TRUE(Run(*program, inputs, last).ok());
    for (size_t o = 0; o < last.size(); ++o) {
      EXPECT_TRUE(last[o]->SameBytes(*all[all.size() - last.size() + o])) << "output " << o;
      EXPECT_TRUE(last[o]->GuardsIntact());
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Random, ProgramLiveness, testing::Range(1u, 40u));

class ProgramTest : public ProgramFixture {
 protected:
  // x + x, times x: one value between.
  void Square(int64_t width) {
    const Operand x = Input(), twice = Rows(width), y = Output(width);
    Step("elementwise", {x, x}, {twice}, {{"function", kAdd}});
    Step("elementwise", {twice, x}, {y}, {{"function", kMul}});
  }
  void ExpectSquares(OwnedTensor& x, OwnedTensor& y) {
    const auto in = Values(x), out = Values(y);
    for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], float(2 * float(in[i])) * float(in[i])) << i;
    EXPECT_TRUE(y.GuardsIntact());
  }
};

TEST_F(ProgramTest, RunsAtSizesThatChange) {
  Square(24);
  const auto program = Make();
  uint32_t seed = 1;
  for (const auto& [batch, length] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 50}, {2, 1}, {1, 1}, {0, 4}, {2, 0}, {5, 7}}) {
    OwnedTensor &x = Tensor({batch, length, 24}, ++seed), &y = Tensor({batch, length, 24});
    const Status status = Run(*program, {&x}, {&y});
    ASSERT_TRUE(status.ok()) << status.Text();
    ExpectSquares(x, y);
  }
}

// Steps behind the one that failed are of the sizes before.
TEST_F(ProgramTest, AFailedRunLeavesNothingBehind) {
  const Operand x = Input(), a = Rows(24), b = Rows(24), y = Output(24);
  Step("elementwise", {x, x}, {a}, {{"function", kAdd}});
  Step("elementwise", {a, a}, {b}, {{"function", kMul}});
  Step("elementwise", {b, a}, {y}, {{"function", kAdd}});
  const auto program = Make();
  OwnedTensor& wrong = Tensor({24, 24, 24, 24});
  for (int64_t length : {40, 3, 17, 40, 1}) {
    OwnedTensor &in = Tensor({2, length, 24}, uint32_t(length)), &out = Tensor({2, length, 24});
    for (int i = 0; i < 2; ++i) {
      ASSERT_FALSE(Run(*program, {i ? nullptr : &wrong}, {&out}).ok());
      const Status status = Run(*program, {&in}, {&out});
      ASSERT_TRUE(status.ok()) << status.Text();
      const auto from = Values(in), to = Values(out);
      for (size_t k = 0; k < from.size(); ++k) {
        const float twice = float(2 * float(from[k]));
        ASSERT_EQ(to[k], float(float(twice * twice) + twice)) << k;
      }
      EXPECT_TRUE(out.GuardsIntact());
    }
  }
}

TEST_F(ProgramTest, WithoutStepsNothingHappens) {
  const auto program = Make();
  EXPECT_TRUE(program->Run({.batch = 2, .length = 3}).ok());
  EXPECT_TRUE(program->Plans({.batch = 2, .length = 3})->empty());
}

TEST_F(ProgramTest, ColumnsOfOneValueAreWrittenAndReadApart) {
  const Operand x = Input(), both = Rows(48), y = Output(16);
  Step("elementwise", {x, x}, {Part(both, 0, {16})}, {{"function", kAdd}});
  Step("elementwise", {x, x}, {Part(both, 16, {32})}, {{"function", kMul}});
  steps.back().inputs = {Part(both, 0, {16}), Part(both, 0, {16})};
  steps.back().outputs = {Part(both, 16, {16})};
  Step("elementwise", {Part(both, 0, {2, 8}), Part(both, 16, {2, 8})}, {Part(y, 0, {2, 8})}, {{"function", kAdd}});
  const auto program = Make();
  OwnedTensor &in = Tensor({2, 3, 16}, 5), &out = Tensor({2, 3, 16});
  const Status status = Run(*program, {&in}, {&out});
  ASSERT_TRUE(status.ok()) << status.Text();
  const auto a = Values(in), b = Values(out);
  for (size_t i = 0; i < a.size(); ++i) {
    const float twice = float(2 * float(a[i]));
    EXPECT_EQ(b[i], float(twice + float(twice * twice)));
  }
}

// Queries and keys of a head behind each other: 3 heads of 8 columns, the keys of each behind its 4 queries.
TEST_F(ProgramTest, EntriesThatLieApartAreReadAsOne) {
  const Operand x = Input(), both = Rows(24), y = Output(12);
  Step("elementwise", {x, x}, {both}, {{"function", kAdd}});
  Step("elementwise", {Apart(both, 0, {3, 4}, 8), Apart(both, 4, {3, 4}, 8)}, {Part(y, 0, {3, 4})},
       {{"function", kMul}});
  const auto program = Make();
  OwnedTensor &in = Tensor({2, 3, 24}, 5), &out = Tensor({2, 3, 12});
  const Status status = Run(*program, {&in}, {&out});
  ASSERT_TRUE(status.ok()) << status.Text();
  const auto a = Values(in), b = Values(out);
  for (size_t row = 0; row < 6; ++row) {
    for (size_t i = 0; i < 12; ++i) {
      const size_t at = row * 24 + i / 4 * 8 + i % 4;
      EXPECT_EQ(b[row * 12 + i], float(float(2 * float(a[at])) * float(2 * float(a[at + 4]))));
    }
  }
}

TEST_F(ProgramTest, ExplainSaysWhatPlansWouldRun) {
  Square(24);
  const auto program = Make();
  OwnedTensor &x = Tensor({1, 2, 24}, 1), &y = Tensor({1, 2, 24});
  const auto in = Given({&x}), out = Given({&y});
  const RunArguments arguments{.batch = 1, .length = 2, .inputs = in, .outputs = out};
  const auto before = Values(y);
  const auto kernels = Kernels(*program, {&x}, {&y});
  ASSERT_EQ(kernels.size(), 2u);
  for (size_t s = 0; s < 2; ++s) {
    const auto json = program->Explain(arguments, s);
    ASSERT_TRUE(json.ok()) << json.status().Text();
    EXPECT_THAT(*json, HasSubstr("\"" + kernels[s] + "\""));
  }
  EXPECT_THAT(program->Explain(arguments, 2).status().Text(), HasSubstr("less than 2"));
}

TEST_F(ProgramTest, ThreadsMayRunOneProgramAtOnce) {
  Square(64);
  const auto program = Make();
  constexpr int kThreads = 4;
  std::vector<std::vector<OwnedTensor*>> x(kThreads), y(kThreads);
  for (size_t t = 0; t < kThreads; ++t) {
    for (int64_t length : {1, 17, 3}) {
      x[t].push_back(&Tensor({1, length, 64}, uint32_t(t * 10 + size_t(length))));
      y[t].push_back(&Tensor({1, length, 64}));
    }
  }
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 60; ++i) failed += !Run(*program, {x[t][i % 3]}, {y[t][i % 3]}).ok();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  for (size_t t = 0; t < kThreads; ++t) {
    for (size_t i = 0; i < 3; ++i) ExpectSquares(*x[t][i], *y[t][i]);
  }
}

class ProgramCache : public ProgramFixture {
 protected:
  static constexpr int64_t kHeads = 2, kDim = 8, kCapacity = 12;
  // Keys and values are the input's; attention over all positions so far.
  void Attend() {
    const Operand x = Input(), keys = Cache({kHeads, kDim}), seen = Cache({kHeads, kDim}), y = Output(kHeads * kDim);
    Step("cast", {x}, {keys}, {{"dtype", 0}});
    Step("elementwise", {x, x}, {seen}, {{"function", kAdd}});
    Step("attention", {x, Past(keys), Past(seen)}, {Part(y, 0, {kHeads, kDim})}, {{"causal", 1}});
  }
};

TEST_F(ProgramCache, PiecesOfASequenceGiveWhatItGivesWhole) {
  Attend();
  const auto program = Make();
  constexpr int64_t kBatch = 3, kLength = 9;
  // Dense, heads before positions (as Transformers has them), and with gaps everywhere.
  const std::vector<std::vector<int64_t>> layouts = {
      {kCapacity * 16, 16, 8, 1}, {kCapacity * 16, 8, kCapacity * 8, 1}, {kCapacity * 80, 40, 20, 1}};
  OwnedTensor& x = Tensor({kBatch, kLength, kHeads, kDim}, 9);
  std::vector<std::vector<double>> results;
  for (const auto& strides : layouts) {
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{9}, {4, 5}, {1, 1, 3, 4}}) {
      OwnedTensor &keys = Strided({kBatch, kCapacity, kHeads, kDim}, strides),
                  &seen = Strided({kBatch, kCapacity, kHeads, kDim}, strides);
      std::vector<double> result(size_t(kBatch * kLength * 16));
      int64_t past = 0;
      for (int64_t length : pieces) {
        OwnedTensor &piece = Tensor({kBatch, length, kHeads, kDim}), &y = Tensor({kBatch, length, kHeads * kDim});
        const auto all = Values(x);
        const lz_tensor t = piece.tensor();
        const View view(t);
        piece.ForEach([&](int64_t flat, int64_t at) {
          const int64_t row = flat / 16, batch = row / length, position = past + row % length;
          view.Store(at, all[size_t((batch * kLength + position) * 16 + flat % 16)]);
        });
        const Status status = Run(*program, {&piece}, {&y}, {&keys, &seen}, past);
        ASSERT_TRUE(status.ok()) << status.Text();
        const auto out = Values(y);
        for (int64_t i = 0; i < int64_t(out.size()); ++i) {
          const int64_t row = i / 16, batch = row / length, position = past + row % length;
          result[size_t((batch * kLength + position) * 16 + i % 16)] = out[size_t(i)];
        }
        past += length;
      }
      EXPECT_TRUE(keys.GuardsIntact());
      EXPECT_TRUE(seen.GuardsIntact());
      results.push_back(std::move(result));
    }
  }
  for (const auto& result : results) {
    for (size_t i = 0; i < result.size(); ++i) ASSERT_NEAR(result[i], results[0][i], 1e-5);
  }
}

TEST_F(ProgramCache, RowsBehindTheRunStayAsTheyWere) {
  Attend();
  const auto program = Make();
  OwnedTensor &x = Tensor({1, 2, kHeads, kDim}, 3), &y = Tensor({1, 2, kHeads * kDim}),
              &keys = Tensor({1, kCapacity, kHeads, kDim}, 4), &seen = Tensor({1, kCapacity, kHeads, kDim}, 5);
  const auto before = Values(keys);
  ASSERT_TRUE(Run(*program, {&x}, {&y}, {&keys, &seen}, 5).ok());
  const auto after = Values(keys), rows = Values(x);
  for (size_t i = 0; i < before.size(); ++i) {
    const bool written = i / 16 == 5 || i / 16 == 6;
    EXPECT_EQ(after[i], written ? rows[i - 5 * 16] : before[i]) << i;
  }
}

TEST_F(ProgramCache, ArgumentsThatDoNotFitAreNamed) {
  Attend();
  const auto program = Make();
  OwnedTensor &x = Tensor({1, 2, kHeads, kDim}, 3), &y = Tensor({1, 2, kHeads * kDim}),
              &fits = Tensor({1, kCapacity, kHeads, kDim}), &other = Tensor({1, kCapacity, kHeads, kDim + 1}),
              &two = Tensor({2, kCapacity, kHeads, kDim}), &half = Tensor({1, kCapacity, kHeads, kDim}, 0, DType::kF16),
              &flat = Tensor({1, kCapacity}), &expanded = Strided({1, kCapacity, kHeads, kDim}, {16, 0, 8, 1}),
              &strided = Strided({1, 2, kHeads * kDim}, {64, 32, 1}), &wide = Tensor({1, 2, kHeads * kDim + 1});
  const auto why = [&](std::vector<OwnedTensor*> in, OwnedTensor* out, std::vector<OwnedTensor*> caches,
                       int64_t past = 0) {
    return Run(*program, std::move(in), {out}, std::move(caches), past).Text();
  };
  EXPECT_EQ(why({&x}, &y, {&fits, &fits}), "ok");
  for (OwnedTensor* wrong : {&other, &two, &half, &flat, &expanded, static_cast<OwnedTensor*>(nullptr)}) {
    EXPECT_THAT(why({&x}, &y, {&fits, wrong}), HasSubstr("program: cache 1: wanted a tensor [1, 2, 2, 8] of float32"));
  }
  EXPECT_THAT(why({&x}, &y, {&fits, &fits}, kCapacity - 1), HasSubstr("cache 0: wanted a tensor [1, 13, 2, 8]"));
  EXPECT_THAT(why({&x}, &y, {&fits, &fits}, -1), HasSubstr("program: sizes"));
  EXPECT_THAT(why({&x}, &y, {&fits, &fits}, INT64_MAX), HasSubstr("program: sizes"));
  EXPECT_THAT(why({&x}, &strided, {&fits, &fits}), HasSubstr("output 0: wanted a dense tensor [1, 2, 16] of float32"));
  EXPECT_THAT(why({&x}, &wide, {&fits, &fits}), HasSubstr("got [1, 2, 17] of float32"));
  EXPECT_THAT(why({&x}, &y, {&fits}), HasSubstr("number of caches: wanted 2, got 1"));
  EXPECT_THAT(why({}, &y, {&fits, &fits}), HasSubstr("number of inputs: wanted 1, got 0"));
  EXPECT_THAT(why({nullptr}, &y, {&fits, &fits}), HasSubstr("cast: missing argument input"));
}

TEST_F(ProgramTest, TensorsElsewhereOrOfTooManyAxesAreRefused) {
  Square(4);
  const auto program = Make();
  OwnedTensor &x = Tensor({1, 2, 4}, 1), &y = Tensor({1, 2, 4});
  auto in = Given({&x}), out = Given({&y});
  RunArguments arguments{.batch = 1, .length = 2, .inputs = in, .outputs = out};
  in[0].device = {2, 0};
  EXPECT_THAT(program->Run(arguments).Text(), HasSubstr("input 0: wanted a tensor of at most 8 axes on the CPU"));
  in[0] = x.tensor();
  std::vector<int64_t> sizes(20, 1);
  in[0].ndim = 20, in[0].shape = sizes.data(), in[0].strides = sizes.data();
  EXPECT_THAT(program->Run(arguments).Text(), HasSubstr("got 20 axes"));
  in[0] = x.tensor();
  out[0].device = {2, 0};
  EXPECT_THAT(program->Run(arguments).Text(), HasSubstr("output 0"));
  out[0] = y.tensor();
  arguments.batch = int64_t{1} << 60, arguments.length = int64_t{1} << 60;
  EXPECT_THAT(program->Run(arguments).Text(), HasSubstr("program: sizes"));
}

TEST_F(ProgramTest, OutputsHaveMemoryOfTheirOwn) {
  const Operand x = Input(), y = Output(4), z = Output(4);
  Step("elementwise", {x, x}, {y});
  Step("elementwise", {x, y}, {z});
  const auto program = Make();
  OwnedTensor &a = Tensor({1, 2, 4}, 1), &b = Tensor({1, 2, 4}), &both = Tensor({1, 4, 4});
  for (const auto& outputs : {std::vector<OwnedTensor*>{&a, &b}, {&b, &a}, {&b, &b}}) {
    EXPECT_THAT(Run(*program, {&a}, outputs).Text(), HasSubstr("wanted memory of its own"));
  }
  auto in = Given({&a}), out = Given({&both, &both});
  std::vector<int64_t> shape = {1, 2, 4};
  for (lz_tensor& t : out) t.shape = shape.data();
  const RunArguments arguments{.batch = 1, .length = 2, .inputs = in, .outputs = out};
  out[1].byte_offset = 7 * 4;
  EXPECT_THAT(program->Run(arguments).Text(), HasSubstr("output 1: wanted memory of its own"));
  out[1].byte_offset = 8 * 4;
  EXPECT_EQ(program->Run(arguments).Text(), "ok");
}

class ProgramRefusal : public ProgramTest {};

TEST_F(ProgramRefusal, StepsThatReadWhatNobodyWrote) {
  const Operand x = Input(), a = Rows(16), y = Output(16);
  Step("elementwise", {x, a}, {y});
  EXPECT_THAT(WhyNot(), HasSubstr("step 0 (elementwise): other: wanted what an earlier step wrote"));
  steps.clear();
  Step("elementwise", {x, x}, {Part(a, 0, {8})});
  Step("elementwise", {a, a}, {y});
  EXPECT_THAT(WhyNot(), HasSubstr("step 1 (elementwise): input"));
  steps.clear();
  Step("elementwise", {x, x}, {Part(a, 8, {8})});
  Step("elementwise", {x, x}, {Part(a, 0, {8})});
  Step("elementwise", {a, a}, {y});
  EXPECT_EQ(WhyNot(), "it is a program");
}

TEST_F(ProgramRefusal, OutputsThatNobodyWrites) {
  const Operand x = Input(), y = Output(16);
  EXPECT_THAT(WhyNot(), HasSubstr("value 1: wanted steps that write all of an output"));
  Step("elementwise", {x, x}, {Part(y, 0, {15})});
  EXPECT_THAT(WhyNot(), HasSubstr("value 1: wanted steps that write all of an output"));
}

TEST_F(ProgramRefusal, StepsThatWriteOverWhatTheyRead) {
  const Operand x = Input(), a = Rows(16), cache = Cache({16}), y = Output(16);
  Step("elementwise", {x, x}, {a});
  Step("elementwise", {Part(a, 0, {8}), x}, {Part(a, 7, {8})});
  EXPECT_THAT(WhyNot(), HasSubstr("step 1 (elementwise): output: wanted memory that no other operand"));
  steps.pop_back();
  Step("elementwise", {x, x}, {cache});
  Step("elementwise", {Past(cache), x}, {cache});
  EXPECT_THAT(WhyNot(), HasSubstr("step 2 (elementwise): output: wanted memory that no other operand"));
  steps.pop_back();
  Step("fused_add_rms_norm", {x, x}, {y, y});
  EXPECT_THAT(WhyNot(), HasSubstr("step 2 (fused_add_rms_norm)"));
}

TEST_F(ProgramRefusal, OperandsOutsideOfTheirValues) {
  OwnedTensor& tensor = Tensor({16}, 1);
  const Operand x = Input(), a = Rows(16), y = Output(16), weight = Weight(tensor), cache = Cache({16});
  const Operand nothing{.value = 99}, below{.value = -2};
  for (const Operand& wrong :
       {Part(a, 1, {16}), Part(a, -1, {8}), Part(a, 0, {17}), Part(a, 0, {}), Part(a, 0, {0}), Part(a, 0, {-4, -4}),
        Part(a, 0, {int64_t{1} << 40, int64_t{1} << 40}), Part(a, INT64_MAX, {1}), Part(a, 0, {2, 2, 1, 1, 1, 1, 1}),
        Part(cache, 1, {16}), Past(a), Past(cache), weight, x, nothing, below}) {
    steps.clear();
    Step("elementwise", {x, x}, {wrong});
    EXPECT_THAT(WhyNot(), HasSubstr("step 0 (elementwise): output: wanted"));
  }
  for (const Operand& wrong : {Part(x, 1, {}), Part(x, 0, {16}), Part(weight, 0, {4, 4}), Past(x), nothing, below}) {
    steps.clear();
    Step("elementwise", {x, wrong}, {y});
    EXPECT_THAT(WhyNot(), HasSubstr("step 0 (elementwise): other: wanted"));
  }
  // Steps: within the row, of rows that were written, none for caches, weights and inputs.
  for (const Operand& wrong :
       {Apart(a, 0, {2, 4}, 13), Apart(a, 1, {3, 4}, 6), Apart(a, 0, {2, 4}, 3), Apart(a, 0, {2, 4}, -8),
        Apart(a, 0, {2, 4}, INT64_MAX), Apart(cache, 0, {2, 4}, 8), Apart(x, 0, {}, 8), Apart(weight, 0, {}, 8)}) {
    steps.clear();
    Step("elementwise", {x, x}, {a});
    Step("elementwise", {wrong, x}, {y});
    EXPECT_THAT(WhyNot(), HasSubstr("step 1 (elementwise): input: wanted"));
  }
  steps.clear();
  Step("elementwise", {x, x}, {Apart(a, 0, {2, 4}, 8)});  // of a step's output the columns between stay as they were
  Step("elementwise", {a, x}, {y});
  EXPECT_THAT(WhyNot(), HasSubstr("step 1 (elementwise): input: wanted what an earlier step wrote"));
  steps.clear();
  Step("elementwise", {x, x}, {Part(a, 0, {8})});
  Step("elementwise", {Apart(a, 0, {2, 4}, 8), x}, {y});
  EXPECT_THAT(WhyNot(), HasSubstr("step 1 (elementwise): input: wanted what an earlier step wrote"));
  steps.clear();
  Step("elementwise", {x, x}, {cache});
  Step("elementwise", {Part(Past(cache), 0, {2, 8}), x}, {y});
  EXPECT_THAT(WhyNot(), HasSubstr("the same axes of a cache wherever it is used"));
}

TEST_F(ProgramRefusal, StepsThatAreNotTheirOperations) {
  const Operand x = Input(), y = Output(16);
  Step("elementwise", {x, x}, {y});
  const ProgramStep good = steps[0];
  EXPECT_EQ(WhyNot(), "it is a program");
  steps[0].inputs.pop_back();
  EXPECT_THAT(WhyNot(), HasSubstr("step 0 (elementwise): operands: wanted as many as the operation has"));
  steps[0] = good, steps[0].outputs.clear();
  EXPECT_THAT(WhyNot(), HasSubstr("operands"));
  steps[0] = good, steps[0].scalars.clear();
  EXPECT_THAT(WhyNot(), HasSubstr("operands"));
  steps[0] = good, steps[0].inputs[1] = {};
  EXPECT_THAT(WhyNot(), HasSubstr("step 0 (elementwise): other: wanted a value, got nothing"));
  steps[0] = good, steps[0].op = nullptr;
  EXPECT_THAT(WhyNot(), HasSubstr("step 0: wanted an operation"));
}

TEST_F(ProgramRefusal, ValuesThatAreNone) {
  for (int64_t width : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    values.clear();
    Value(ProgramValue::Kind::kRows, width);
    EXPECT_THAT(WhyNot(), HasSubstr("value 0: wanted 1 to 2^31 elements in a row"));
  }
  values.clear();
  Value(ProgramValue::Kind::kRows, 4, DType::kUnknown);
  EXPECT_THAT(WhyNot(), HasSubstr("value 0: wanted a dtype"));
  values.clear();
  Value(ProgramValue::Kind::kWeight);
  EXPECT_THAT(WhyNot(), HasSubstr("value 0: wanted a tensor of at most 8 axes"));
}

TEST_F(ProgramRefusal, ResultsOfAnotherShapeOrDtypeThanTheirValue) {
  const Operand x = Input(), y = Output(16);
  Step("cast", {x}, {y}, {{"dtype", 2}});  // float16
  const auto program = Make();
  OwnedTensor &in = Tensor({1, 2, 16}, 1), &out = Tensor({1, 2, 16});
  EXPECT_THAT(Run(*program, {&in}, {&out}).Text(),
              HasSubstr("program: cast: output: wanted [1, 2, 16] of float16, got"));
}

}  // namespace
}  // namespace lz
