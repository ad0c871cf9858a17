// Rules and globs of the policy (D2).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "policy/policy.h"

namespace lz {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Rule> Rules(const std::string& yaml) {
  const PolicyLayer layer{"layerzero.yaml", yaml};
  Result<Policy> policy = ParsePolicy({&layer, 1});
  EXPECT_TRUE(policy.ok()) << policy.status().Text();
  return policy.ok() ? policy->rules : std::vector<Rule>();
}

std::string Refusal(const std::string& yaml) {
  const PolicyLayer layer{"layerzero.yaml", yaml};
  Result<Policy> policy = ParsePolicy({&layer, 1});
  return policy.ok() ? "accepted" : policy.status().Text();
}

// "sm >= 90"
std::vector<std::string> Conditions(const Rule& rule) {
  std::vector<std::string> texts;
  for (const RuleCondition& c : rule.conditions) {
    texts.push_back(c.field + " " + std::string(RelText(c.rel)) + " " +
                    (c.text.empty() ? std::to_string(c.operand) : c.text));
  }
  return texts;
}

std::vector<std::string> Match(const std::string& match) {
  const std::vector<Rule> rules = Rules("rules: [{match: {" + match + "}, deny: x.y}]");
  return rules.size() == 1 ? Conditions(rules[0]) : std::vector<std::string>{"not one rule"};
}

TEST(PolicyRules, ReadsTheExampleOfTheSpecification) {
  const std::vector<Rule> rules = Rules(
      "rules:\n"
      "  # Prefer FlashAttention v3 on Hopper\n"
      "  - match:\n"
      "      sm: \">=90\"\n"
      "      operation: \"attention.*\"\n"
      "    prefer: \"flash_attn.v3.*\"\n"
      "  - match:\n"
      "      seq_len: \">16384\"\n"
      "    avoid_sources:\n"
      "      - xformers\n");
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(rules[0].operation, "attention.*");
  EXPECT_THAT(Conditions(rules[0]), ElementsAre("sm >= 90"));
  EXPECT_THAT(rules[0].prefer, ElementsAre("flash_attn.v3.*"));
  EXPECT_EQ(rules[0].origin, "layerzero.yaml:3");
  EXPECT_EQ(rules[1].operation, "*");
  EXPECT_THAT(Conditions(rules[1]), ElementsAre("seq_len > 16384"));
  EXPECT_THAT(rules[1].avoid, ElementsAre("xformers"));
  EXPECT_EQ(rules[1].origin, "layerzero.yaml:7");
}

TEST(PolicyRules, ReadsEachRelationAndValue) {
  EXPECT_THAT(Match("head_dim: 128"), ElementsAre("head_dim == 128"));
  EXPECT_THAT(Match("head_dim: '>= 64 , <256'"), ElementsAre("head_dim >= 64", "head_dim < 256"));
  EXPECT_THAT(Match("seq_len: '<=16', batch_size: '!=3', d_v: '==-1'"),
              ElementsAre("seq_len <= 16", "batch_size != 3", "d_v == -1"));
  EXPECT_THAT(Match("dtype: bfloat16, key.dtype: '!=float8_*'"),
              ElementsAre("dtype == bfloat16", "key.dtype != float8_*"));
  EXPECT_THAT(Match("causal: true, capturing: '!=false'"), ElementsAre("causal == 1", "capturing != 0"));
  EXPECT_THAT(Match("generation: '!=hopper'"), ElementsAre("generation != hopper"));
  EXPECT_THAT(Match("gpu_generation: 'a*'"), ElementsAre("gpu_generation == a*"));
}

TEST(PolicyRules, ReadsVersionsInTheirUsualForms) {
  for (const char* sm : {"90", "9.0", "'9.0'", "'90'", "'==9.0'"}) {
    EXPECT_THAT(Match(std::string("sm: ") + sm), ElementsAre("sm == 90")) << sm;
  }
  EXPECT_THAT(Match("sm: '>=8.6'"), ElementsAre("sm >= 86"));
  EXPECT_THAT(Match("device.sm: 12.0"), ElementsAre("device.sm == 120"));
  EXPECT_THAT(Match("driver_version: '>=580.65'"), ElementsAre("driver_version >= 580065"));
  EXPECT_THAT(Match("driver_version: '>=580.65.06'"), ElementsAre("driver_version >= 580065"));
  EXPECT_THAT(Match("driver_version: '>=580'"), ElementsAre("driver_version >= 580000"));
  EXPECT_THAT(Match("cuda_version: '<12.8'"), ElementsAre("cuda_version < 12080"));
  EXPECT_THAT(Match("cuda_version: 13"), ElementsAre("cuda_version == 13000"));
}

TEST(PolicyRules, ListsMeanAnyOf) {
  const std::vector<Rule> rules =
      Rules("rules: [{match: {op: [norm.rms, attention.*], dtype: [float16, bfloat16]}, deny: [x.y, lib]}]");
  ASSERT_EQ(rules.size(), 4u);
  EXPECT_EQ(rules[1].operation, "norm.rms");
  EXPECT_THAT(Conditions(rules[1]), ElementsAre("dtype == bfloat16"));
  EXPECT_EQ(rules[2].operation, "attention.*");
  EXPECT_THAT(Conditions(rules[2]), ElementsAre("dtype == float16"));
  for (const Rule& rule : rules) EXPECT_THAT(rule.deny, ElementsAre("x.y", "lib"));
}

TEST(PolicyRules, ReadsEachAction) {
  const std::vector<Rule> rules =
      Rules("rules: [{prefer: a, avoid: [b.c], avoid_sources: d, deny: 'e.*', allowlist: [f, g.h], lock: i.j}]");
  ASSERT_EQ(rules.size(), 1u);
  EXPECT_THAT(rules[0].prefer, ElementsAre("a"));
  EXPECT_THAT(rules[0].avoid, ElementsAre("b.c", "d"));
  EXPECT_THAT(rules[0].deny, ElementsAre("e.*"));
  EXPECT_THAT(rules[0].allow, ElementsAre("f", "g.h"));
  EXPECT_EQ(rules[0].lock, "i.j");
}

TEST(PolicyRules, RulesOfALaterLayerComeFirst) {
  const std::vector<PolicyLayer> layers = {{"file", "rules: [{deny: a.a}, {deny: b.b}]"},
                                           {"code", "rules: [{deny: c.c}, {deny: d.d}]"}};
  Result<Policy> policy = ParsePolicy(layers);
  ASSERT_TRUE(policy.ok());
  std::string order;
  for (const Rule& rule : policy->rules) order += rule.deny[0] + " ";
  EXPECT_EQ(order, "c.c d.d a.a b.b ");
}

TEST(PolicyRules, MistakesNameLineAndRule) {
  const std::vector<std::pair<const char*, const char*>> mistakes = {
      {"rules: {a: b}", "rules: wanted a list of rules"},
      {"rules: [a]", "rules[0]: wanted a rule"},
      {"rules:\n- {deny: a.b}\n- match: {sm: 90}\n", "layerzero.yaml:3: rules[1]: wanted an action"},
      {"rules: [{mach: {sm: 90}, deny: a}]", "did you mean match?"},
      {"rules: [{match: {sm: 90}, denny: a}]", "did you mean deny?"},
      {"rules: [{match: {sm: 9}, deny: a}]", "wanted a compute capability, as 90 or 9.0, got '9'; write 9.0 or 90"},
      {"rules: [{match: {sm: 90a}, deny: a}]", "wanted a compute capability"},
      {"rules: [{match: {sm: '=>90'}, deny: a}]", "wanted a compute capability"},
      {"rules: [{match: {seq_len: 16k}, deny: a}]", "rules[0].match.seq_len: wanted an integer, got '16k'"},
      {"rules: [{match: {seq_len: ''}, deny: a}]", "wanted an integer"},
      {"rules: [{match: {seq_len: '>1,'}, deny: a}]", "wanted an integer"},
      {"rules: [{match: {seq_len: }, deny: a}]", "wanted a condition"},
      {"rules: [{match: {seq_len: []}, deny: a}]", "wanted at least one value, got an empty list"},
      {"rules: [{match: {seq_len: [[1]]}, deny: a}]", "wanted a condition"},
      {"rules: [{match: {d: 1.5}, deny: a}]", "wanted an integer, true or false, or a name"},
      {"rules: [{match: {dtype: '>float16'}, deny: a}]", "names have no order"},
      {"rules: [{match: {generation: '>=hopper'}, deny: a}]", "names have no order; use sm"},
      {"rules: [{match: {generation: hoper}, deny: a}]", "did you mean hopper?"},
      {"rules: [{match: {op: a, operation: b}, deny: a}]", "op or operation, not both"},
      {"rules: [{match: {op: '!=a'}, deny: a}]", "list the operations"},
      {"rules: [{match: {'a b': 1}, deny: a}]", "wanted the name of a field"},
      {"rules: [{match: [sm], deny: a}]", "wanted a map from field to condition"},
      {"rules: [{deny: []}]", "wanted at least one name"},
      {"rules: [{deny: {a: b}}]", "wanted a kernel id, a library or a glob, got a map"},
      {"rules: [{avoid_sources: a.b}]", "without dots"},
      {"rules: [{lock: 'a.*'}]", "wanted a kernel id"},
  };
  for (const auto& [yaml, message] : mistakes) EXPECT_THAT(Refusal(yaml), HasSubstr(message)) << yaml;
}

TEST(PolicyRules, ListsThatMultiplyTooFarAreRefused) {
  std::string list = "[0";
  for (int i = 1; i < 10; ++i) list += ", " + std::to_string(i);
  list += "]";
  EXPECT_THAT(Refusal("rules: [{match: {a: " + list + ", b: " + list + "}, deny: a}]"), HasSubstr("at most 64"));
  std::string all;
  for (char field = 'a'; field <= 'z'; ++field) all += std::string(1, field) + ": " + list + ", ";
  EXPECT_THAT(Refusal("rules: [{match: {" + all + "}, deny: a}]"), HasSubstr("split the rule"));
}

TEST(PolicyRules, FieldNamesOfAliases) {
  EXPECT_THAT(PolicyFieldNames("sm"), ElementsAre("device.sm"));
  EXPECT_THAT(PolicyFieldNames("batch_size"), ElementsAre("b"));
  EXPECT_EQ(PolicyFieldNames("head_dim")[0], "d");
  EXPECT_TRUE(PolicyFieldNames("s_kv").empty());
}

TEST(Glob, MatchesAsFileNames) {
  EXPECT_TRUE(GlobMatch("", ""));
  EXPECT_TRUE(GlobMatch("*", ""));
  EXPECT_TRUE(GlobMatch("attention.*", "attention.gqa.decode"));
  EXPECT_TRUE(GlobMatch("*.decode", "attention.gqa.decode"));
  EXPECT_TRUE(GlobMatch("a*b*c", "aXbYbZc"));
  EXPECT_TRUE(GlobMatch("?.?", "a.b"));
  EXPECT_FALSE(GlobMatch("", "a"));
  EXPECT_FALSE(GlobMatch("attention.*", "attention"));
  EXPECT_FALSE(GlobMatch("norm.rms", "norm.rms.x"));
  EXPECT_FALSE(GlobMatch("?", ""));
  EXPECT_FALSE(GlobMatch("a*b", "acbd"));
}

// A second, slow definition: dynamic programming over both texts.
bool SlowGlob(std::string_view pattern, std::string_view text) {
  std::vector<char> row(text.size() + 1, 0);
  row[0] = 1;
  for (char p : pattern) {
    std::vector<char> next(text.size() + 1, 0);
    next[0] = p == '*' && row[0];
    for (size_t i = 1; i <= text.size(); ++i) {
      next[i] = p == '*' ? row[i] || next[i - 1] : row[i - 1] && (p == '?' || p == text[i - 1]);
    }
    row = next;
  }
  return row[text.size()];
}

TEST(Glob, AgreesWithItsDefinitionOnAllShortTexts) {
  constexpr std::string_view kPattern = "ab*?", kText = "ab";
  int num_matches = 0;
  for (int p = 0; p < 1 << 12; ++p) {
    std::string pattern;
    for (int rest = p, i = 0; i < 1 + p % 6; ++i, rest /= 4) pattern += kPattern[size_t(rest % 4)];
    for (int t = 0; t < 128; ++t) {
      std::string text;
      for (int rest = t, i = 0; i < t % 8; ++i, rest /= 2) text += kText[size_t(rest % 2)];
      ASSERT_EQ(GlobMatch(pattern, text), SlowGlob(pattern, text)) << pattern << " " << text;
      num_matches += GlobMatch(pattern, text);
    }
  }
  EXPECT_GT(num_matches, 1000);
}

TEST(Glob, ManyStarsTakeNoExponentialTime) {
  std::string pattern, text(4000, 'a');
  for (int i = 0; i < 100; ++i) pattern += "*a";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(GlobMatch(pattern + "b", text));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace lz
