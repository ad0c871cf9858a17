// Policies in force: what repeated, changing and nested settings keep, and which names they may use.
#include "pipeline/policy_store.h"

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

}  // namespace
}  // namespace lz
