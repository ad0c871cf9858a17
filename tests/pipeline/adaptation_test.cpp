// Transforms in a plan: mixed dtypes are cast, layouts turned, inputs made dense; strict mode refuses instead.
#include <algorithm>

#include "core/view.h"
#include "selector_fixture.h"

namespace lz {
namespace {

constexpr const char* kMixed = "query=bf16[1,3,2,8] key=f32[1,5,2,8] value=f16[1,5,2,8]";
constexpr const char* kAttention = "attention.standard.prefill";
std::string Lock(const char* operation, const char* kernel) {
  return std::string(R"({"locks": {")") + operation + R"(": ")" + kernel + R"("}})";
}

lz_launch_fn g_reference = nullptr;
int g_dense = 0;
int32_t DenseOnly(const lz_kernel_args* args) {  // the reference, on tensors of which each must be dense
  for (int i = 0; i < 8; ++i) {
    const lz_tensor& t = args->tensors[i];
    int64_t expected = 1;
    for (int32_t d = t.ndim - 1; d >= 0; --d) {
      if (t.shape[d] != 1 && t.strides[d] != expected) return 9;
      expected *= t.shape[d];
    }
  }
  ++g_dense;
  return g_reference(args);
}

class AdaptationTest : public SelectorFixture {
 protected:
  AdaptationTest() {
    g_reference = selector.registry().FindKernel(kAttention, "ref.attention.standard.prefill")->spec.launch;
    g_dense = 0;
  }
};

std::string Paged(const std::string& dtype, const std::string& tables) {
  return "query=f32[2,1,4,16] key_cache=f32[3,8,4,16] value_cache=f32[3,8,4,16] block_tables=" + dtype + "[2,2]{" +
         tables + "} context_lens=" + dtype + "[2]{9,3}";
}

TEST_F(AdaptationTest, IndicesAreConvertedForAKernelThatReadsTheOtherDtype) {
  Configure(Lock("attention.standard.decode.block_table", "hwy.attention.standard.decode.block_table"));
  Call &wide = MakeCall("paged_attention", Paged("i64", "0,1,2,0")),
       &narrow = MakeCall("paged_attention", Paged("i32", "0,1,2,0"));
  for (size_t t = 0; t < 3; ++t) wide.parsed.tensors[t] = narrow.parsed.tensors[t];  // each line draws its own values
  wide.r = wide.parsed.MakeRequest();
  auto converted = Run(wide), plain = Run(narrow);
  ASSERT_TRUE(converted.ok()) << converted.status().Text();
  ASSERT_TRUE(plain.ok()) << plain.status().Text();
  EXPECT_EQ((*converted)->transforms.indices, 0b11000u);
  EXPECT_EQ((*plain)->transforms.indices, 0u);
  EXPECT_TRUE(wide.outputs[0].SameBytes(narrow.outputs[0]));
}

TEST_F(AdaptationTest, AnIndexThatInt32DoesNotHoldIsAnError) {
  Configure(Lock("attention.standard.decode.block_table", "hwy.attention.standard.decode.block_table"));
  for (const char* tables : {"0,4294967297,2,0", "0,2147483648,2,0", "0,1,-2147483649,0"}) {
    const auto plan = Run(MakeCall("paged_attention", Paged("i64", tables)));
    ASSERT_FALSE(plan.ok()) << tables;
    EXPECT_EQ(plan.status().code(), StatusCode::kKernelFailed);
    EXPECT_NE(plan.status().Text().find("block_tables"), std::string::npos) << plan.status().Text();
  }
}

TEST_F(AdaptationTest, MixedDtypesAreCastToTheirPromotion) {
  for (const char* kernel : {"ref.attention.standard.prefill", ""}) {
    Configure(*kernel ? Lock(kAttention, kernel)
                      : R"({"locks": {"attention": null, "attention.standard.prefill": null}})");
    Call& mixed = MakeCall("attention", kMixed);
    auto plan = Run(mixed);
    ASSERT_TRUE(plan.ok()) << plan.status().Text();
    EXPECT_EQ((*plan)->transforms.cast, 0b101u);
    EXPECT_EQ(mixed.r.outputs[0].dtype, DType::kF32);

    Call& same = MakeCall("attention", "query=f32[1,3,2,8] key=f32[1,5,2,8] value=f32[1,5,2,8]");
    for (size_t i = 0; i < 3; ++i) {
      const lz_tensor given = mixed.parsed.tensors[i].tensor(), promoted = same.parsed.tensors[i].tensor();
      const View from(given), to(promoted);
      for (int64_t e = 0; e < from.numel(); ++e) to.Store(e, from.Load(e));
    }
    auto plain = Run(same);
    ASSERT_TRUE(plain.ok()) << plain.status().Text();
    EXPECT_FALSE((*plain)->transforms.any());
    EXPECT_EQ((*plain)->kernel, (*plan)->kernel);
    EXPECT_TRUE(mixed.outputs[0].SameBytes(same.outputs[0]));
  }
}

TEST_F(AdaptationTest, StrictModeAndNoAdaptationRefuseMixedDtypes) {
  for (const char* policy : {R"({"strict_mode": true})", R"({"strict_mode": false, "allow_adaptation": false})"}) {
    Configure(policy);
    Call& mixed = MakeCall("attention", kMixed);
    const SelectionReport report = Explain(mixed);
    EXPECT_EQ(report.winner, -1);
    for (const Candidate& c : report.candidates) {
      EXPECT_TRUE(Has(c, ReasonCode::kDtypeUnsupported)) << c.kernel->id;
      EXPECT_TRUE(Has(c, ReasonCode::kTransformNotAllowed)) << c.kernel->id;
    }
    EXPECT_EQ(selector.Select(mixed.r).status().code(), StatusCode::kNoKernel);
  }
}

TEST_F(AdaptationTest, ACastHasItsCostAndItsOwnClass) {
  Call& mixed = MakeCall("attention", kMixed);
  const SelectionReport report = Explain(mixed);
  for (const Candidate& c : report.candidates) {
    if (!c.admissible()) continue;
    const auto at =
        std::ranges::find_if(c.terms, [](const Term& t) { return std::string_view(t.name) == "transforms"; });
    ASSERT_NE(at, c.terms.end()) << c.kernel->id;
    EXPECT_EQ(at->value, -TransformCost(c.transforms, mixed.r));
    EXPECT_LT(at->value, 0);
  }
  Call& same = MakeCall("attention", "query=f32[1,3,2,8] key=f32[1,5,2,8] value=f32[1,5,2,8]");
  ASSERT_TRUE(selector.Select(mixed.r).ok());
  ASSERT_TRUE(selector.Bind(same.r).ok());
  auto plan = selector.Select(same.r);
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE((*plan)->transforms.any());
}

TEST_F(AdaptationTest, ACopyCostsByItsShareOfTheCall) {
  const char* kShort = "input=f32[1,64] weight=f32[64,64]@strided";  // own kernels want rows or columns that are dense
  const char* kLong = "input=f32[4096,64] weight=f32[64,64]@strided";
  Register({.id = "any.k", .operation = "mlp.linear", .strides = Strides::kAny, .priority = 10, .launch = &DenseOnly});
  Register({.id = "dense.k", .operation = "mlp.linear", .priority = 90, .launch = &DenseOnly});
  const auto winner = [&](const char* line) {
    const SelectionReport report = Explain(MakeCall("linear", line));
    return report.winner < 0 ? std::string() : report.candidates[size_t(report.winner)].kernel->id;
  };
  EXPECT_EQ(winner(kShort), "any.k");  // the copy of the weight is the call
  EXPECT_EQ(winner(kLong), "dense.k");
}

TEST_F(AdaptationTest, KvCachesAreNeverCast) {
  const Operation& op = *selector.registry().Find("paged_attention");
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    EXPECT_FALSE(op.promotes(i) && op.input(i).name.ends_with("cache")) << op.input(i).name;
  }
}

TEST_F(AdaptationTest, ADenseKernelServesTheOtherLayout) {
  Register({.id = "dense.k", .operation = kAttention, .priority = 1, .launch = &DenseOnly});
  const char* line = "query=f32[2,2,3,8] key=f32[2,2,5,8] value=f32[2,2,5,4] return_lse=true";
  Configure(Lock(kAttention, "dense.k"));
  Call& turned = MakeCall("attention", line, /*layout=*/1);
  auto plan = Run(turned);
  ASSERT_TRUE(plan.ok()) << plan.status().Text();
  EXPECT_EQ(g_dense, 1);
  EXPECT_EQ((*plan)->transforms.contiguous, 0b111u);
  EXPECT_EQ((*plan)->transforms.outputs, 0b1u);
  EXPECT_EQ(turned.outputs[0].shape(), (std::vector<int64_t>{2, 2, 3, 4}));  // as the inputs are laid out

  Configure(Lock(kAttention, "ref.attention.standard.prefill"));
  Call& plain = MakeCall("attention", line, 1);
  ASSERT_TRUE(Run(plain).ok());
  for (size_t o = 0; o < 2; ++o) EXPECT_TRUE(turned.outputs[o].SameBytes(plain.outputs[o])) << o;

  Configure(R"({"strict_mode": true, "locks": {"attention.standard.prefill": "dense.k"}})");
  Call& strict = MakeCall("attention", line, 1);
  const SelectionReport report = Explain(strict);
  EXPECT_EQ(report.winner, -1);
  EXPECT_TRUE(Has(Of(report, "dense.k"), ReasonCode::kLayoutUnsupported));
  EXPECT_TRUE(Has(Of(report, "dense.k"), ReasonCode::kTransformNotAllowed));
}

// ---- which layout a call means

class LayoutTest : public SelectorFixture {
 protected:
  Call& Attention(const std::string& line) { return MakeCall("attention", line, kDetectLayout); }
  static std::string Found(const Request& r) {
    return (r.layout_guessed ? "perhaps " : "") + r.op->layout_names()[size_t(r.layout)] + " by " +
           std::string(kLayoutSourceNames[size_t(r.layout_source)]);
  }
  std::string FoundIn(const std::string& line) {
    Call& c = Attention(line);
    Status status = selector.Bind(c.r);
    return status.ok() ? Found(c.r) : status.Text();
  }
  // q, k, v of one shape.
  static std::string Same(const std::string& tensor) {
    return "query=" + tensor + " key=" + tensor + " value=" + tensor;
  }
};

TEST_F(LayoutTest, TheSchemaDecidesWhereOneReadingFits) {
  EXPECT_EQ(FoundIn("query=f32[1,1,6,8] key=f32[1,9,3,8] value=f32[1,9,3,8]"), "BSHD by schema");
  EXPECT_EQ(FoundIn("query=f32[1,6,1,8] key=f32[1,3,9,8] value=f32[1,3,9,8]"), "BHSD by schema");
  EXPECT_EQ(FoundIn("query=f32[1,5,6,8] key=f32[1,5,4,8] value=f32[1,5,4,8]"), "BHSD by schema");  // 6 % 4
  EXPECT_EQ(FoundIn(Same("f32[2,1,1,8]")), "BSHD by schema");
}
TEST_F(LayoutTest, TheMaskDecides) {
  EXPECT_EQ(FoundIn(Same("f32[1,5,7,8]") + " attn_mask=bool[1,1,5,5]"), "BSHD by mask");
  EXPECT_EQ(FoundIn(Same("f32[1,5,7,8]") + " attn_mask=bool[1,1,7,7]"), "BHSD by mask");
  EXPECT_EQ(FoundIn(Same("f32[1,5,7,8]") + " sinks=f32[5]"), "BHSD by schema");
}
TEST_F(LayoutTest, UsualHeadCountsDecide) {
  EXPECT_EQ(FoundIn(Same("f32[1,5,8,8]")), "perhaps BSHD by head_counts");
  EXPECT_EQ(FoundIn(Same("f32[1,8,5,8]")), "perhaps BHSD by head_counts");
  Configure(R"({"layout": {"head_counts": [8, 5, 300]}})");  // proves: layout.head_counts
  EXPECT_EQ(FoundIn(Same("f32[1,5,7,8]")), "perhaps BHSD by head_counts");
}
TEST_F(LayoutTest, MoreHeadsThanAnybodyHasAreImplausible) {
  EXPECT_EQ(FoundIn(Same("f32[1,129,7,8]")), "BSHD by plausibility");
  EXPECT_EQ(FoundIn(Same("f32[1,7,129,8]")), "BHSD by plausibility");
  EXPECT_EQ(FoundIn(Same("f32[1,128,7,8]")), "perhaps BHSD by head_counts");
  EXPECT_EQ(FoundIn(Same("f32[1,129,130,8]")), "perhaps BSHD by assumed");
  Configure(R"({"layout": {"head_counts": [5]}})");
  EXPECT_EQ(FoundIn(Same("f32[1,5,8,8]")), "BHSD by plausibility");
}
TEST_F(LayoutTest, CausalWithMoreQueriesThanKeysIsImplausible) {
  const std::string grouped = "query=f32[2,8,64,32] key=f32[2,2,64,32] value=f32[2,2,64,32]";  // GQA, 8 over 2
  EXPECT_EQ(FoundIn(grouped), "BHSD by plausibility");
  EXPECT_EQ(FoundIn(grouped + " causal=true"), "BHSD by plausibility");
  EXPECT_EQ(FoundIn(grouped + " causal=false"), "perhaps BSHD by assumed");  // 8 and 64 are usual
  EXPECT_EQ(FoundIn("query=f32[2,2,64,32] key=f32[2,2,64,32] value=f32[2,2,64,32]"), "perhaps BSHD by head_counts");
  Configure(R"({"strict_mode": true})");
  EXPECT_EQ(FoundIn(grouped), "BHSD by plausibility");
}
TEST_F(LayoutTest, TheLargerAxisDecidesNothing) {
  EXPECT_EQ(FoundIn(Same("f32[1,100,7,8]")), "perhaps BSHD by assumed");
  EXPECT_EQ(FoundIn(Same("f32[1,7,100,8]")), "perhaps BSHD by assumed");
  EXPECT_EQ(FoundIn(Same("f32[1,8,16,8]")), "perhaps BSHD by assumed");  // both are usual
  EXPECT_EQ(FoundIn(Same("f32[1,8,8,8]")), "perhaps BSHD by assumed");
}
TEST_F(LayoutTest, StridesOfATransposedViewDecide) {
  std::deque<std::array<int64_t, 4>> strides;
  const auto swap = [&](Request& r, size_t i) {  // [b, x, y, d] over memory [b, y, x, d]
    const int64_t* n = r.tensors[i].shape;
    r.tensors[i].strides = strides.emplace_back(std::array{n[1] * n[2] * n[3], n[3], n[1] * n[3], int64_t{1}}).data();
  };
  Call& all = Attention(Same("f32[1,5,7,8]"));
  for (size_t i = 0; i < 3; ++i) swap(all.r, i);
  ASSERT_TRUE(selector.Bind(all.r).ok());
  EXPECT_EQ(Found(all.r), "BHSD by strides");
  Call& some = Attention(Same("f32[1,5,7,8]"));
  swap(some.r, 0);
  ASSERT_TRUE(selector.Bind(some.r).ok());
  EXPECT_EQ(Found(some.r), "perhaps BSHD by assumed");
  Call& against = Attention(Same("f32[1,5,8,8]"));  // 8 heads would be usual, 5 not
  for (size_t i = 0; i < 3; ++i) swap(against.r, i);
  ASSERT_TRUE(selector.Bind(against.r).ok());
  EXPECT_EQ(Found(against.r), "perhaps BSHD by head_counts");
  Call& turned = Attention(Same("f32[1,128,12,8]"));  // a cache of 12 heads, turned, or a projection of 128
  for (size_t i = 0; i < 3; ++i) swap(turned.r, i);
  ASSERT_TRUE(selector.Bind(turned.r).ok());
  EXPECT_EQ(Found(turned.r), "perhaps BHSD by strides");
  Call& given = MakeCall("attention", Same("f32[1,128,12,8]"), 0);
  for (size_t i = 0; i < 3; ++i) swap(given.r, i);
  ASSERT_TRUE(selector.Bind(given.r).ok());
  EXPECT_EQ(Found(given.r), "BSHD by argument");
}
TEST_F(LayoutTest, StrictModeRefusesWhatNothingDecides) {
  Configure(R"({"strict_mode": true})");
  EXPECT_NE(FoundIn(Same("f32[1,5,7,8]")).find("attention: layout: wanted BSHD or BHSD"), std::string::npos);
  EXPECT_NE(FoundIn(Same("f32[1,5,8,8]")).find("strict mode"), std::string::npos);
  EXPECT_EQ(FoundIn(Same("f32[1,500,8,8]")), "BSHD by plausibility");
}
TEST_F(LayoutTest, AnArgumentIsObeyedAndOutputsFollowIt) {
  Call& c = MakeCall("attention", "query=f32[1,2,5,8] key=f32[1,2,5,8] value=f32[1,2,5,4]", 1);
  ASSERT_TRUE(selector.Bind(c.r).ok());
  EXPECT_EQ(Found(c.r), "BHSD by argument");
  EXPECT_EQ((std::vector<int64_t>(c.r.outputs[0].physical, c.r.outputs[0].physical + 4)),
            (std::vector<int64_t>{1, 2, 5, 4}));
  ASSERT_TRUE(selector.Bind(c.r).ok());  // again, as an error's explanation does: not turned twice
  EXPECT_EQ((std::vector<int64_t>(c.r.outputs[0].physical, c.r.outputs[0].physical + 4)),
            (std::vector<int64_t>{1, 2, 5, 4}));
}
TEST_F(LayoutTest, WhatFitsNoReadingIsSaidByTheContractsOrder) {
  EXPECT_NE(FoundIn("query=f32[1,5,7,8] key=f32[2,5,7,8] value=f32[1,5,7,8]").find("key"), std::string::npos);
}

}  // namespace
}  // namespace lz
