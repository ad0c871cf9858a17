// Policies in force: what repeated, changing and nested settings keep, and which names they may use.
#include "policy/store.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "pipeline/selector.h"

namespace lz {
namespace {

size_t HeapBytes() { return mallinfo2().uordblks; }

class PolicyStoreTest : public testing::Test {
 protected:
  void Configure(const std::string& json) {
    Status status = policies.Configure(json);
    ASSERT_TRUE(status.ok()) << status.Text();
  }
  int64_t Scope(int64_t parent, const std::string& json) {
    auto id = policies.Scope(parent, json);
    EXPECT_TRUE(id.ok()) << id.status().Text();
    return id.ok() ? *id : -1;
  }
  std::string LockOf(int64_t id, const char* operation = "norm.rms") {
    const Operation& op = *selector.registry().Find(operation);
    auto policy = policies.For(id, op);
    EXPECT_TRUE(policy.ok()) << policy.status().Text();
    return (*policy)->locks[size_t(Registry::VariantIndex(op, operation))];
  }
  Status Refused(const std::string& json) { return policies.Configure(json); }

  Selector selector;
  Policies& policies = selector.policies();
};

TEST_F(PolicyStoreTest, AHundredThousandLocksAndUnlocksKeepNothing) {
  const auto cycle = [&] {
    Configure(R"({"locks": {"norm.rms": "ref.norm.rms"}})");
    Configure(R"({"locks": {"norm.rms": null}})");
  };
  for (int i = 0; i < 1000; ++i) cycle();
  EXPECT_EQ(LockOf(0), "");
  const size_t before = HeapBytes();
  for (int i = 0; i < 100'000; ++i) cycle();
  EXPECT_EQ(LockOf(0), "");
  EXPECT_LT(HeapBytes(), before + 100'000);
  EXPECT_EQ(policies.num_layers(), 1u);
  EXPECT_LE(policies.num_compiled(), 3u);  // locked, unlocked, and the start
}

TEST_F(PolicyStoreTest, EverNewValuesKeepOnePolicyEachUpToTheCap) {
  for (int i = 0; i < 1000; ++i) {
    Configure(R"({"prefer_tolerance": 0.)" + std::to_string(100 + i) + R"(, "cache": {"max_size": )" +
              std::to_string(1 + i) + "}}");
  }
  EXPECT_EQ(policies.num_layers(), 1u);
  EXPECT_EQ(policies.num_compiled(), Policies::kMaxCompiled);
  EXPECT_EQ((*policies.policy(0))->cache_max_size, 1000);
}

TEST_F(PolicyStoreTest, AScopeKeepsItsWordsAlone) {
  const auto words = [](int i) { return R"({"cache": {"max_size": )" + std::to_string(1 + i) + "}}"; };
  for (int i = 0; i < 1000; ++i) Scope(0, words(i));
  const size_t before = HeapBytes();
  for (int i = 1000; i < 11'000; ++i) Scope(0, words(i));
  EXPECT_LT(HeapBytes() - before, size_t{10'000} * 400);
  EXPECT_EQ((*policies.policy(Scope(0, words(7))))->cache_max_size, 8);  // compiled again
  EXPECT_EQ(policies.num_scopes(), 11'001u);
}

TEST_F(PolicyStoreTest, TheSameWordsAreOneScopeAlsoNested) {
  const std::string words = R"({"enabled": false})";
  const int64_t one = Scope(0, words);
  EXPECT_EQ(Scope(0, words), one);
  EXPECT_EQ(Scope(one, words), one);
  const int64_t inner = Scope(one, R"({"enabled": true})");
  EXPECT_NE(inner, one);
  EXPECT_TRUE((*policies.policy(inner))->enabled);
}

TEST_F(PolicyStoreTest, LaterWordsOfCodeReplaceEarlierOnes) {
  Configure(
      R"({"strict_mode": true, "cache": {"max_size": 5, "enabled": false}, "locks": {"norm.rms": "ref.norm.rms"}})");
  Configure(R"({"cache": {"max_size": 6}})");
  Configure(R"({"rules": [{"match": {"operation": "norm.rms"}, "deny": "hwy.*"}]})");
  Configure(R"({"rules": []})");
  const auto policy = *policies.policy(0);
  EXPECT_TRUE(policy->strict_mode);
  EXPECT_EQ(policy->cache_max_size, 6);
  EXPECT_FALSE(policy->cache_enabled);
  EXPECT_TRUE(policy->rules.empty());
  EXPECT_EQ(LockOf(0), "ref.norm.rms");
}

TEST_F(PolicyStoreTest, TheLaterLockWinsWhateverItsName) {
  Configure(R"({"locks": {"norm.rms": "hwy.norm.rms"}})");
  Configure(R"({"locks": {"norm": "ref.norm.rms"}})");
  EXPECT_EQ(LockOf(0), "ref.norm.rms");
  Configure(R"({"locks": {"NORM_RMS": "hwy.norm.rms"}})");  // the same name, written otherwise
  EXPECT_EQ(LockOf(0), "hwy.norm.rms");
  EXPECT_EQ(policies.num_layers(), 2u);
}

TEST_F(PolicyStoreTest, AScopeSeesTheProcessChange) {
  const int64_t scope = Scope(0, R"({"deterministic": true})");
  Configure(R"({"strict_mode": true})");
  EXPECT_TRUE((*policies.policy(scope))->strict_mode);
  EXPECT_TRUE((*policies.policy(scope))->deterministic);
}

TEST_F(PolicyStoreTest, ALockOnAGroupBindsAKernelThatIsRegisteredLater) {
  Configure(R"({"locks": {"norm": "late.k"}})");
  EXPECT_EQ(LockOf(0, "norm.layer"), "late.k");  // unknown so far: an error at its first use
  const KernelSpec spec{.id = "late.k", .operation = "norm.rms", .dtypes = kFloats};
  const Registry::Registration one{&spec, {}, {}};
  ASSERT_TRUE(selector.registry().Register({&one, 1}).ok());
  EXPECT_EQ(LockOf(0), "late.k");
  EXPECT_EQ(LockOf(0, "norm.layer"), "");
}

TEST_F(PolicyStoreTest, NamesOfNoOperationAreRefused) {
  Status status = Refused(R"({"locks": {"norm.rsm": "ref.norm.rms"}})");
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  EXPECT_NE(status.Text().find("norm.rsm"), std::string::npos) << status.Text();
  EXPECT_FALSE(Refused(R"({"locks": {"no.such": null}})").ok());
  EXPECT_FALSE(Refused(R"({"rules": [{"match": {"operation": "norm.rsm"}, "deny": "hwy.*"}]})").ok());
  EXPECT_FALSE(Refused("[1]").ok());
  EXPECT_FALSE(Refused("{").ok());
  EXPECT_TRUE(Refused(R"({"locks": {"attention.causal": null, "attention": null, "rms_norm": null}})").ok());
  EXPECT_EQ(policies.num_layers(), 1u);
}

TEST_F(PolicyStoreTest, NearestNamesOfOperations) {
  EXPECT_NE(Refused(R"({"locks": {"norm.rsm": "ref.norm.rms"}})").Text().find("did you mean norm.rms?"),
            std::string::npos);
  EXPECT_NE(Refused(R"({"rules": [{"match": {"op": "attention.casual"}, "deny": "hwy.*"}]})")
                .Text()
                .find("did you mean attention.causal?"),
            std::string::npos);
}

// An alias, a flat name, an id and a glob over any of them.
TEST_F(PolicyStoreTest, RulesNameOperationsAsLocksDo) {
  for (const char* name :
       {"attention.causal", "attention", "attention.standard.prefill", "attention.ca*", "attention.*"}) {
    Configure(R"({"rules": [{"match": {"op": ")" + std::string(name) + R"("}, "lock": "ref.x"}]})");
    const Operation& attention = *selector.registry().Find("attention.standard.prefill");
    auto policy = policies.For(0, attention);
    ASSERT_TRUE(policy.ok()) << policy.status().Text();
    EXPECT_EQ((*policy)->rules[size_t(Registry::VariantIndex(attention, "attention.standard.prefill"))].size(), 1u)
        << name;
    auto other = policies.For(0, *selector.registry().Find("norm.rms"));
    EXPECT_TRUE((*other)->rules[0].empty()) << name;
  }
}

struct Named {
  const char* policy;
  const char* message;  // a part of the refusal; "": accepted
};
TEST_F(PolicyStoreTest, KernelsAndLibrariesMustExistOnceAllAreNamed) {
  const std::vector<Named> cases = {
      {R"({"prefer_sources": ["hwyy"]})",
       "prefer_sources: wanted a library that LayerZero has kernels of, got 'hwyy'; "
       "did you mean hwy?"},
      {R"({"avoid_sources": ["hwyy"]})", "avoid_sources"},
      {R"({"allow_sources": ["ref", "hwyy"]})", "allow_sources"},
      {R"({"locks": {"norm.rms": "hwy.nrm.rms"}})",
       "locks.norm.rms: wanted a kernel that is registered, got "
       "'hwy.nrm.rms'; did you mean hwy.norm.rms?"},
      {R"({"locks": {"norm.rms": "hwy.norm.layer"}})", "'hwy.norm.layer', a kernel of another one"},
      {R"({"rules": [{"prefer": "hwyy"}]})", "rules.prefer"},
      {R"({"rules": [{"avoid_sources": "hwyy"}]})", "rules.avoid"},
      {R"({"rules": [{"deny": "hwy.nrm.rms"}]})", "did you mean hwy.norm.rms?"},
      {R"({"rules": [{"allowlist": ["hwyy.*"]}]})", "did you mean hwy?"},
      {R"({"rules": [{"match": {"op": "norm.layer"}, "lock": "hwy.norm.rms"}]})", "rules.lock"},
      {R"({"prefer_sources": ["hwy", "h*", "zz*", "soon"], "rules": [{"deny": ["hwy.*", "hwy", "*.layer", "soon.x.y"]}]})",
       ""},
      {R"({"locks": {"norm": "hwy.norm.rms", "rms_norm": "hwy.norm.rms", "norm.layer": "soon.layer"}})", ""},
      {R"({"locks": {"norm": null}})", ""},
  };
  for (const Named& c : cases) {  // before: what is named may still come
    auto early = policies.Scope(0, c.policy);
    EXPECT_TRUE(early.ok()) << c.policy << early.status().Text();
  }
  policies.AllNamed({"soon"});
  for (const Named& c : cases) {
    Status status = policies.Configure(c.policy);
    EXPECT_EQ(status.ok(), !*c.message) << c.policy << status.Text();
    EXPECT_TRUE(status.ok() || status.Text().find(c.message) != std::string::npos) << c.policy << status.Text();
    Configure(R"({"prefer_sources": [], "avoid_sources": [], "allow_sources": [], "rules": [],
                  "locks": {"norm": null, "rms_norm": null, "norm.layer": null}})");
  }
}

// Files and the environment are read before the libraries are known: a wrong name is said at the first selection.
TEST_F(PolicyStoreTest, NamesOfFilesAreCheckedLater) {
  ASSERT_TRUE(policies.Load({{"layerzero.yaml", "prefer_sources: [late]\n"}}).ok());
  const Operation& op = *selector.registry().Find("norm.rms");
  EXPECT_TRUE(policies.For(0, op).ok());
  policies.AllNamed({});
  EXPECT_NE(policies.For(0, op).status().Text().find("layerzero.yaml:1: prefer_sources"), std::string::npos);
  const KernelSpec spec{.id = "late.k", .operation = "norm.rms", .dtypes = kFloats};
  const Registry::Registration one{&spec, {}, {}};
  ASSERT_TRUE(selector.registry().Register({&one, 1}).ok());
  EXPECT_TRUE(policies.For(0, op).ok());
}

// Its kernel may be registered until its first use.
TEST_F(PolicyStoreTest, ALockOfAFileIsNoConcernOfOtherOperations) {
  ASSERT_TRUE(policies.Load({{"layerzero.yaml", "locks: {norm.layer: later.k}\n"}}).ok());
  policies.AllNamed({});
  EXPECT_TRUE(policies.For(0, *selector.registry().Find("norm.rms")).ok());
  EXPECT_FALSE(policies.For(0, *selector.registry().Find("norm.layer")).ok());
}

}  // namespace
}  // namespace lz
