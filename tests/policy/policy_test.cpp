// The policy reader: each key, precedence, mistakes with their line, limits, random input (D1, D3, App. 2, App. 3).
#include "policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "core/contract.h"
#include "policy/keys.h"
#include "policy/values.h"

namespace lz {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Result<Policy> Parse(std::string yaml) {
  const PolicyLayer layer{"layerzero.yaml", std::move(yaml)};
  return ParsePolicy({&layer, 1});
}

Result<Policy> ParseAll(std::vector<PolicyLayer> layers) { return ParsePolicy(layers); }

// The message of a text that must be refused.
std::string Refusal(std::string yaml) {
  Result<Policy> policy = Parse(std::move(yaml));
  if (policy.ok()) return "accepted";
  EXPECT_EQ(policy.status().code(), StatusCode::kConfig);
  return policy.status().Text();
}

// `{"section": {"leaf": value}}`
std::string Layer(const PolicyKey& key, const json& value) {
  const std::string name(key.name);
  const size_t dot = name.find('.');
  json layer;
  if (dot == std::string::npos) {
    layer[name] = value;
  } else {
    layer[name.substr(0, dot)][name.substr(dot + 1)] = value;
  }
  return layer.dump();
}

// Two accepted values that differ from each other and from the default.
std::pair<json, json> OtherValues(const PolicyKey& key) {
  if (key.name == "devices.sm_to_generation") return {{{"80-89", "ampere"}}, {{"90", "hopper"}}};
  switch (key.type) {
    case KeyType::kBool: return {key.value != "true", key.value == "true"};
    case KeyType::kInt: return {int64_t(key.min) + 2, int64_t(key.min) + 3};
    case KeyType::kFloat: return {key.min + 0.25, key.min + 0.5};
    case KeyType::kIntList: return {json::array({1, 2}), json::array({3})};
    case KeyType::kPath: return {"/one", "/two"};
    case KeyType::kOptionalPath: return {"/one", "/two"};
    case KeyType::kAddress: return {"9464", "[::1]:0"};
    case KeyType::kChoice: return {ChoiceName(key.choices, 1), ChoiceName(key.choices, 2)};
    case KeyType::kNames:
    case KeyType::kSources: return {{"one"}, {"two", "three"}};
    case KeyType::kPublicKeys: return {{std::string(64, 'a')}, {std::string(64, 'b'), std::string(64, 'c')}};
    case KeyType::kLocks: return {{{"norm.rms", "one.norm"}}, {{"norm.rms", "two.norm"}}};
    case KeyType::kGenerations: return {{{"ampere", 3}}, {{"ampere", 4}}};
    case KeyType::kModes: return {{{"default", "subprocess"}}, {{"default", "in_process"}, {"one", "subprocess"}}};
    case KeyType::kContainers:
      return {{{"one", {{"arguments", json::array()}, {"gpu_passthrough", false}, {"image", "a"}, {"ipc", ""}}}},
              {{"one", {{"arguments", {"-q"}}, {"gpu_passthrough", true}, {"image", "b"}, {"ipc", "host"}}}}};
    default: return {};
  }
}

TEST(Policy, DefaultsAreThoseOfTheStruct) {
  Result<Policy> parsed = ParsePolicy({});
  ASSERT_TRUE(parsed.ok()) << parsed.status().Text();
  const Policy& p = *parsed;
  const Policy built_in;
  EXPECT_EQ(p.enabled, built_in.enabled);
  EXPECT_EQ(p.fallback_enabled, built_in.fallback_enabled);
  EXPECT_EQ(p.explain_enabled, built_in.explain_enabled);
  EXPECT_EQ(p.allow_adaptation, built_in.allow_adaptation);
  EXPECT_EQ(p.log_selections, built_in.log_selections);
  EXPECT_EQ(p.deterministic, built_in.deterministic);
  EXPECT_EQ(p.strict_mode, built_in.strict_mode);
  EXPECT_EQ(p.debug, built_in.debug);
  EXPECT_EQ(p.prefer_tolerance, built_in.prefer_tolerance);
  EXPECT_EQ(p.memory_headroom_mb, built_in.memory_headroom_mb);
  EXPECT_EQ(p.cache_max_size, built_in.cache_max_size);
  EXPECT_EQ(p.cache_enabled, built_in.cache_enabled);
  EXPECT_EQ(p.cache_deduplication, built_in.cache_deduplication);
  EXPECT_EQ(p.cache_ttl_seconds, built_in.cache_ttl_seconds);
  EXPECT_EQ(p.cache_dir, HomeFolder() + "/.cache/layerzero");
  ASSERT_EQ(p.sm_to_generation.size(), 5u);
  EXPECT_EQ(p.sm_to_generation[0].first, 75);
  EXPECT_EQ(p.sm_to_generation[1].last, 88);
  EXPECT_EQ(p.sm_to_generation[2].generation, "ada");
  EXPECT_EQ(p.sm_to_generation[4].last, 199);
  EXPECT_EQ(p.generation_to_tc_gen.at("hopper"), 4);
  EXPECT_EQ(p.settings.size(), PolicyKeys().size());
  for (const auto& [key, origin] : p.origins) EXPECT_EQ(origin, "default") << key;
}

TEST(Policy, EveryDefaultIsAnAcceptedValue) {
  for (const PolicyKey& key : PolicyKeys()) {
    Result<Policy> policy = Parse(Layer(key, DefaultValue(key)));
    ASSERT_TRUE(policy.ok()) << policy.status().Text();
    EXPECT_EQ(policy->settings, ParsePolicy({})->settings) << key.name;
    EXPECT_EQ(policy->hash, ParsePolicy({})->hash) << key.name;
  }
}

TEST(Policy, PathsHaveTheHomeWhereverTheyComeFrom) {
  const std::string home = Dump(HomeFolder() + "/a");
  for (const PolicyKey& key : PolicyKeys()) {
    if (key.type != KeyType::kPath && key.type != KeyType::kOptionalPath) continue;
    EXPECT_EQ(Parse(Layer(key, "~/a"))->settings.at(std::string(key.name)), home) << key.name;
  }
  EXPECT_EQ(ParsePolicy({})->settings.at("cache_dir"), Dump(HomeFolder() + "/.cache/layerzero"));
}

TEST(Policy, SettingsOfAPolicyReadBackGiveTheSameHash) {
  Result<Policy> first = Parse(
      "strict_mode: true\nlocks: {attention.causal: own.attention}\nprefer_sources: [hwy, torch]\n"
      "rules:\n- match: {sm: '>=90', op: [attention.*, norm.rms], dtype: [bfloat16, float16], seq_len: '>16, <=64'}\n"
      "  prefer: own.*\n  avoid_sources: [xformers]\n- {lock: hwy.norm.rms}\n");
  ASSERT_TRUE(first.ok()) << first.status().Text();
  json all;
  for (const PolicyKey& key : PolicyKeys()) {
    all.merge_patch(json::parse(Layer(key, json::parse(first->settings.at(std::string(key.name))))));
  }
  Result<Policy> second = Parse(all.dump());
  ASSERT_TRUE(second.ok()) << second.status().Text();
  EXPECT_EQ(second->settings, first->settings);
  EXPECT_EQ(second->hash, first->hash);
}

TEST(Policy, ALaterLayerWinsForEveryKey) {
  int num_keys = 0;
  for (const PolicyKey& key : PolicyKeys()) {
    if (key.name == "version" || key.type == KeyType::kRules) continue;
    const auto [low, high] = OtherValues(key);
    ASSERT_FALSE(low.is_null()) << key.name;
    const std::string name(key.name);
    for (int layer = 0; layer < 5; ++layer) {  // `high` in each of the layers above the lowest
      std::vector<PolicyLayer> layers = {
          {"user", Layer(key, low)}, {"project", ""}, {"environment", ""}, {"lz.configure", ""}, {"scope", ""}};
      EXPECT_EQ(ParsePolicy(layers)->settings.at(name), Dump(low)) << name;
      EXPECT_EQ(ParsePolicy(layers)->origins.at(name), "user") << name;
      if (layer == 0) continue;
      layers[size_t(layer)].yaml = Layer(key, high);
      Result<Policy> policy = ParsePolicy(layers);
      ASSERT_TRUE(policy.ok()) << policy.status().Text();
      EXPECT_EQ(policy->settings.at(name), Dump(high)) << name;
      EXPECT_EQ(policy->origins.at(name), layers[size_t(layer)].name) << name;
      EXPECT_EQ(policy->hash != ParsePolicy({})->hash, high != DefaultValue(key) && IsHashed(key.type)) << name;
    }
    ++num_keys;
  }
  EXPECT_GE(num_keys, 18);
}

// Whatever its value: a default of what is not there would be a promise too.
TEST(Policy, WhatTheRoadmapPlansIsRefusedWithTheLine) {
  EXPECT_GE(PolicyRoadmap().size(), 20u);
  for (const std::string_view planned : PolicyRoadmap()) {
    EXPECT_EQ(FindPolicyKey(planned), nullptr) << planned;
    EXPECT_FALSE(IsPolicySection(planned)) << planned;
    const size_t dot = planned.find('.');
    const std::string key(planned.substr(dot + 1)), section(planned.substr(0, dot == planned.npos ? 0 : dot));
    for (const char* value : {"false", "{enabled: true}", "1", ""}) {
      const std::string line = section.empty() ? key + ": " + value : section + ": {" + key + ": " + value + "}";
      const std::string message = Refusal("# a comment\n" + line + "\n");
      EXPECT_THAT(message, HasSubstr("layerzero.yaml:2: ")) << planned;
      EXPECT_THAT(message, HasSubstr("not supported in this version, see docs/roadmap.md")) << planned;
    }
  }
  EXPECT_TRUE(IsOnPolicyRoadmap("distributed.selection_mode"));
  for (const PolicyKey& key : PolicyKeys()) EXPECT_FALSE(IsOnPolicyRoadmap(key.name)) << key.name;
}

TEST(Policy, KeysOfTheProcessAreRefusedInAScope) {
  int num_keys = 0;
  for (const PolicyKey& key : PolicyKeys()) {
    const std::vector<PolicyLayer> in_file = {{"file", Layer(key, DefaultValue(key))}};
    std::vector<PolicyLayer> in_scope = {{"lz.policy", Layer(key, DefaultValue(key)), true}};
    EXPECT_TRUE(ParsePolicy(in_file).ok()) << key.name;
    Result<Policy> policy = ParsePolicy(in_scope);
    EXPECT_EQ(policy.ok(), !key.process_wide) << key.name;
    if (!key.process_wide) continue;
    EXPECT_THAT(policy.status().Text(), HasSubstr(std::string(key.name))) << key.name;
    EXPECT_THAT(policy.status().Text(), HasSubstr("layerzero.configure()")) << key.name;
    ++num_keys;
  }
  EXPECT_GE(num_keys, 10);
}

TEST(Policy, EveryKeyRefusesAnotherType) {
  for (const PolicyKey& key : PolicyKeys()) {
    const bool map = key.value.starts_with('{');
    const std::string message = Refusal(Layer(key, map ? json(true) : json({{"a", 1}})));
    EXPECT_THAT(message, HasSubstr("layerzero.yaml: " + std::string(key.name))) << key.name;
    EXPECT_THAT(message, HasSubstr(WantedText(key))) << key.name;
  }
}

TEST(Policy, NumbersOutsideTheRangeAreRefused) {
  for (const PolicyKey& key : PolicyKeys()) {
    if (key.type != KeyType::kInt && key.type != KeyType::kFloat) continue;
    const json below = key.type == KeyType::kInt ? json(int64_t(key.min) - 1) : json(key.min - 0.5);
    const json above = key.type == KeyType::kInt ? json(int64_t(key.max) + 1) : json(key.max + 0.5);
    EXPECT_THAT(Refusal(Layer(key, below)), HasSubstr("wanted " + WantedText(key))) << key.name;
    EXPECT_THAT(Refusal(Layer(key, above)), HasSubstr("wanted " + WantedText(key))) << key.name;
  }
}

struct Mistake {
  std::string yaml;
  std::vector<const char*> message;  // parts of it
};

TEST(Policy, MistakesNameLineKeyAndFix) {
  const std::vector<Mistake> mistakes = {
      {"version: 2", {"layerzero.yaml:1: version: wanted 1, got '2'"}},  // proves: version
      {"\n\nstrict_mod: true\n",
       {"layerzero.yaml:3: wanted a known key, got 'strict_mod'", "did you mean strict_mode?"}},
      {"cache:\n  max_siz: 1\n", {"layerzero.yaml:2: cache: wanted a known key", "did you mean max_size?"}},
      {"max_size: 1\n", {"did you mean max_size in the section cache?"}},
      {"cache.max_size: 1\n", {"did you mean max_size in the section cache?"}},
      {"cach: {max_size: 1}\n", {"did you mean cache?"}},
      {"zzzzqqqq: 1\n", {"got 'zzzzqqqq'"}},
      {"enabled: yes\n", {":1: enabled: wanted true or false, got 'yes'; write true or false"}},
      {"enabled: 'true'\n", {"without quotes"}},
      {"enabled:\n", {"wanted true or false, got nothing"}},
      {"cache: 3\n", {"cache: wanted a map", "got '3'"}},
      {"cache: {max_size: 1.5}\n", {"wanted an integer from 1 to 1000000000, got '1.5'"}},
      {"cache: {max_size: '5'}\n", {"remove the quotes"}},
      {"cache: {max_size: 0x10}\n", {"got '0x10'"}},
      {"cache: {max_size: 99999999999999999999999}\n", {"wanted an integer"}},
      {"cache: {entry_ttl_seconds: .nan}\n", {"wanted a number"}},
      {"cache: {entry_ttl_seconds: inf}\n", {"wanted a number"}},
      {"prefer_sources: flash_attn\n", {"write it as a list"}},
      {"prefer_sources: [flash_attn.v3]\n", {"without dots"}},
      {"prefer_sources: [a, b, a]\n", {"each entry once"}},
      {"locks: [a]\n", {"wanted a map from operation to kernel id, got a list"}},
      {"locks:\n  norm.rms: 'a.*'\n", {":2: locks.norm.rms: wanted a kernel id", "allowlist"}},
      {"enabled: true\nstrict_mode: true\nenabled: false\n",
       {":3: wanted each key once, got 'enabled' again, first in line 1"}},
      {"a: &x 1\n", {":1: wanted plain values, got an anchor"}},
      {"a: *x\n", {":1: "}},
      {"enabled: !!bool true\n", {"wanted values without tags"}},
      {"<<: {enabled: true}\n", {"wanted a known key"}},
      {"enabled: true\n---\nenabled: false\n", {"wanted one document, got a second one"}},
      {"enabled: [true\n", {"valid YAML"}},
      {"{}}\n", {"layerzero.yaml"}},
      {"? [a]\n: 1\n", {"wanted a name as key, got a list"}},
      {"- a\n", {"wanted a map from key to value, got a list"}},
      {"\xff\xfe", {"UTF-8"}},
      {std::string("enabled: true\0", 14), {"wanted text without zero bytes, got a zero byte"}},
      {std::string("\0", 1), {"a zero byte"}},
      {"devices: {sm_to_generation: {80-90: ampere, 90-99: hopper}}\n", {"ranges that do not overlap", "90 in two"}},
      {"devices: {sm_to_generation: {9.0: hopper}}\n", {"89 or 80-88"}},
      {"devices: {sm_to_generation: {99-90: hopper}}\n", {"a compute capability or a range"}},
      {"devices: {sm_to_generation: {90: hoper}}\n", {"did you mean hopper?"}},
      {"devices: {generation_to_tc_gen: {hopper: four}}\n", {"a map from generation to an integer"}},
  };
  for (const Mistake& mistake : mistakes) {
    const std::string message = Refusal(mistake.yaml);
    for (const char* part : mistake.message) EXPECT_THAT(message, HasSubstr(part)) << mistake.yaml;
  }
}

TEST(Policy, EmptyTextsAndSectionsChangeNothing) {
  for (const char* yaml : {"", "\n", "# only a comment\n", "---\n", "{}", "cache:\n", "locks:\nrules:\n", "~"}) {
    Result<Policy> policy = Parse(yaml);
    ASSERT_TRUE(policy.ok()) << yaml << policy.status().Text();
    EXPECT_EQ(policy->hash, ParsePolicy({})->hash) << yaml;
  }
}

TEST(Policy, LocksOfLayersAddUpAndNullUnlocks) {
  Result<Policy> policy = ParseAll({{"file", "locks: {attention.causal: a.one, norm.rms: a.two, norm.layer: a.three}"},
                                    {"environment", "{\"locks\": {\"attention_causal\": \"b.one\"}}"},
                                    {"lz.lock", "{\"locks\": {\"norm.rms\": null}}"}});
  ASSERT_TRUE(policy.ok()) << policy.status().Text();
  EXPECT_THAT(policy->locks, ElementsAre(std::pair("attention_causal", "b.one"), std::pair("norm.layer", "a.three")));
  EXPECT_EQ(policy->origins.at("locks.norm.layer"), "file:1");
}

TEST(Policy, LocksForObeysTheLayerThenTheLongestName) {
  Result<Policy> policy = ParseAll({{"file", "locks: {attention.gqa.decode: a.gqa, attention.gqa: a.group, nor: x.y}"},
                                    {"environment", "locks: {attention: b.all}"}});
  ASSERT_TRUE(policy.ok());
  const auto kernels = [&](std::vector<std::string_view> names) {
    std::vector<std::string> kernels;
    for (const LockMatch& match : LocksFor(*policy, names)) kernels.push_back(match.kernel + (match.group ? " *" : ""));
    return kernels;
  };
  EXPECT_THAT(kernels({"attention.gqa.decode", "attention"}), ElementsAre("b.all *", "a.gqa", "a.group *"));
  EXPECT_THAT(kernels({"attention.standard.prefill", "attention.causal"}), ElementsAre("b.all *"));
  EXPECT_THAT(kernels({"norm.rms"}), IsEmpty());  // "nor" is no group of names
  EXPECT_THAT(kernels({}), IsEmpty());
  // The order of layers is part of what the policy means.
  Result<Policy> one = ParseAll({{"file", "locks: {attention: b.all, attention.gqa.decode: a.gqa}"}});
  Result<Policy> two = ParseAll({{"a", "locks: {attention.gqa.decode: a.gqa}"}, {"b", "locks: {attention: b.all}"}});
  EXPECT_EQ(one->settings, two->settings);
  EXPECT_NE(one->hash, two->hash);
}

TEST(Policy, ASourcePreferredAboveIsNoLongerAvoided) {
  Result<Policy> policy =
      ParseAll({{"file", "avoid_sources: [xformers, flashinfer]"}, {"scope", "prefer_sources: [flashinfer]"}});
  EXPECT_THAT(policy->avoid_sources, ElementsAre("xformers"));
  EXPECT_THAT(policy->prefer_sources, ElementsAre("flashinfer"));
  policy = ParseAll({{"file", "prefer_sources: [xformers, flashinfer]"}, {"environment", "avoid_sources: [xformers]"}});
  EXPECT_THAT(policy->prefer_sources, ElementsAre("flashinfer"));
  EXPECT_THAT(policy->avoid_sources, ElementsAre("xformers"));
}

TEST(Policy, HashIsOfContentNotOfNamesLinesAndPaths) {
  const uint64_t hash = Parse("strict_mode: true\nprefer_sources: [hwy]\n")->hash;
  EXPECT_EQ(ParseAll({{"x", "\n\nprefer_sources:\n- hwy"}, {"y", "{\"strict_mode\": true}"}})->hash, hash);
  EXPECT_EQ(Parse("strict_mode: true\nprefer_sources: [hwy]\ncache_dir: /elsewhere\n")->hash, hash);
  EXPECT_NE(Parse("strict_mode: true\nprefer_sources: [torch]\n")->hash, hash);
  EXPECT_NE(Parse("rules: [{deny: a.b}, {deny: c.d}]")->hash, Parse("rules: [{deny: c.d}, {deny: a.b}]")->hash);
}

TEST(Policy, JsonShowsValueAndOriginOfEachKey) {
  Result<Policy> policy = Parse("cache:\n  max_size: 77\nlocks: {norm.rms: a.b}\nrules:\n- {deny: x.y}\n");
  ASSERT_TRUE(policy.ok());
  const json keys = json::parse(PolicyJson(*policy))["keys"];
  EXPECT_EQ(keys.size(), PolicyKeys().size());
  EXPECT_EQ(keys["cache.max_size"]["value"], 77);
  EXPECT_EQ(keys["cache.max_size"]["origin"], "layerzero.yaml:2");
  EXPECT_EQ(keys["cache.enabled"]["origin"], "default");
  EXPECT_EQ(keys["locks"]["origins"]["norm.rms"], "layerzero.yaml:3");
  EXPECT_EQ(keys["rules"]["origins"][0], "layerzero.yaml:5");
  EXPECT_TRUE(json::accept(PolicyJson(Policy{})));
}

TEST(PolicyYaml, LimitsEndLargeAndDeepInputEarly) {
  EXPECT_THAT(Refusal(std::string(kMaxPolicyBytes + 1, ' ')), HasSubstr("at most 1048576 bytes"));
  const size_t half = kMaxPolicyBytes / 2;
  std::string dashes, maps;
  for (size_t i = 0; i < half / 2; ++i) dashes += "- ", maps += "{a: ";
  maps.resize(half);
  for (const std::string& text : {std::string(half, '['), std::string(half, '{'), dashes, maps, std::string(half, '?'),
                                  std::string(half, '"'), std::string(half, '&'), std::string(half, 'a') + ": 1"}) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_NE(Refusal(text), "accepted") << text.substr(0, 8);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << text.substr(0, 8);
  }
}

TEST(PolicyYaml, RandomBytesNeverCrash) {
  std::mt19937 random(20240607);
  constexpr std::string_view kAlphabet = "ab1.:-?*&!|>'\"%@`#{}[], \n\t~<=\\x\x7f\xc3\xa9";
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % 200, ' ');
    for (char& c : text) c = round % 3 == 0 ? char(random() & 255) : kAlphabet[random() % kAlphabet.size()];
    Result<Policy> policy = Parse(text);
    if (!policy.ok()) {
      EXPECT_EQ(policy.status().code(), StatusCode::kConfig);
    }
  }
}

TEST(PolicyYaml, ChangedFilesNeverCrash) {
  const std::string good =
      "version: 1\nstrict_mode: true\nprefer_sources: [hwy, torch]\nlocks:\n  attention.causal: a.b\n"
      "cache: {enabled: true, max_size: 12}\nrules:\n- match: {sm: \">=90\", operation: \"attention.*\", dtype: [a, "
      "b]}\n"
      "  prefer: \"flash_attn.v3.*\"\n- match:\n    seq_len: \">16384\"\n  avoid_sources:\n    - xformers\n";
  ASSERT_TRUE(Parse(good).ok());
  std::mt19937 random(7);
  int num_accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (int edit = 0; edit <= round % 4; ++edit) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = char(random() & 255); break;
        case 1: text.erase(at, 1 + random() % 10); break;
        case 2: text.insert(at, text.substr(random() % text.size(), random() % 20)); break;
        default: text[at] = good[random() % good.size()]; break;
      }
      if (text.empty()) text.push_back('x');
    }
    Result<Policy> policy = Parse(text);
    num_accepted += policy.ok();
    if (policy.ok()) {
      EXPECT_TRUE(json::accept(PolicyJson(*policy)));
    }
  }
  EXPECT_GT(num_accepted, 30);  // some edits are harmless: the loop tests more than the first check
}

}  // namespace
}  // namespace lz
