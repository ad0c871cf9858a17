// The plan cache: complete comparison, bounds, second chance, epochs, single flight, reclamation.
#include "pipeline/cache.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/reclaimer.h"
#include "pipeline/plan.h"
#include "registry/registry.h"

namespace lz {
namespace {

const Operation& Op() {
  static const Registry& registry = *new Registry;
  return *registry.Find("rms_norm");
}

// Classes that differ in an exact slot, so that every number is one class.
Facts FactsOf(int32_t policy) {
  Facts f{};
  f.v[kSlotGeneration] = 1;
  f.v[kSlotPolicy] = policy;
  return f;
}

class CacheTest : public testing::Test {
 protected:
  const Plan* Find(int32_t policy) {
    Facts key;
    uint64_t hash;
    return cache.Find(Op().state().classifier, FactsOf(policy), &key, &hash);
  }
  void Insert(int32_t policy, const Plan* plan, size_t max_size = 1000) {
    Facts key;
    uint64_t hash;
    const Facts facts = FactsOf(policy);
    (void)cache.Find(Op().state().classifier, facts, &key, &hash);
    cache.Insert(key, hash, epochs.Current(), plan, max_size);
  }
  Epochs epochs;
  PlanCache cache{epochs};
  std::array<Plan, 8> plans;
};

TEST_F(CacheTest, FindsWhatWasInserted) {
  EXPECT_EQ(Find(1), nullptr);
  for (int32_t i = 0; i < 500; ++i) Insert(i, &plans[size_t(i) % 8]);
  for (int32_t i = 0; i < 500; ++i) ASSERT_EQ(Find(i), &plans[size_t(i) % 8]) << i;
  EXPECT_EQ(Find(500), nullptr);
  EXPECT_EQ(cache.stats().entries, 500u);
  EXPECT_EQ(cache.stats().inserted, 500u);
}

TEST_F(CacheTest, EqualHashesAreToldApart) {
  Facts a = FactsOf(1), b = FactsOf(2);
  cache.Insert(a, 77, epochs.Current(), &plans[0], 100);
  cache.Insert(b, 77, epochs.Current(), &plans[1], 100);
  EXPECT_EQ(cache.stats().entries, 2u);
  EXPECT_EQ(cache.stats().invalidated, 0u);
}

TEST_F(CacheTest, NoEpochMayAdvance) {
  for (int kind = 0; kind < int(EpochKind::kCount); ++kind) {
    Insert(1, &plans[0]);
    ASSERT_EQ(Find(1), &plans[0]);
    epochs.Advance(EpochKind(kind));
    ASSERT_EQ(Find(1), nullptr) << "epoch " << kind;
  }
  EXPECT_EQ(cache.stats().entries, 1u) << "a stale entry is replaced, not joined";
}

TEST_F(CacheTest, NoEpochMayAdvanceForABox) {
  const Facts facts = FactsOf(1);
  InlineCache site;
  Op().state().classifier.RangeOf(facts, &site.lo, &site.hi);
  site.plan = &plans[0];
  EXPECT_EQ(LookupInline(site, facts, epochs), nullptr) << "one without a generation";
  for (int kind = 0; kind < int(EpochKind::kCount); ++kind) {
    site.generation = epochs.Generation();
    ASSERT_EQ(LookupInline(site, facts, epochs), &plans[0]);
    epochs.Advance(EpochKind(kind));
    ASSERT_EQ(LookupInline(site, facts, epochs), nullptr) << "epoch " << kind;
  }
}

TEST_F(CacheTest, AnEntryOfOldEpochsIsNeverCurrent) {
  const EpochValues before = epochs.Current();
  Facts key;
  uint64_t hash;
  (void)cache.Find(Op().state().classifier, FactsOf(3), &key, &hash);
  epochs.Advance(EpochKind::kPolicy);  // while a selection ran
  cache.Insert(key, hash, before, &plans[0], 100);
  EXPECT_EQ(Find(3), nullptr);
}

TEST_F(CacheTest, StaysWithinItsBound) {
  for (const size_t bound : {1u, 2u, 7u, 64u, 100u}) {
    PlanCache small(epochs);
    for (int32_t i = 0; i < 1000; ++i) {
      const Facts facts = FactsOf(i);
      Facts key;
      uint64_t hash;
      (void)small.Find(Op().state().classifier, facts, &key, &hash);
      small.Insert(key, hash, epochs.Current(), &plans[0], bound);
      ASSERT_LE(small.stats().entries, bound);
      ASSERT_EQ(small.Find(Op().state().classifier, facts, &key, &hash), &plans[0]) << "the newest stays";
    }
    const CacheStats s = small.stats();
    EXPECT_EQ(s.inserted, s.entries + s.evicted + s.invalidated);
  }
}

TEST_F(CacheTest, UsedEntriesGetASecondChance) {
  constexpr size_t kBound = 100;
  for (int32_t i = 0; i < 40; ++i) Insert(i, &plans[0], kBound);
  for (int32_t next = 100; next < 1100; ++next) {
    for (int32_t i = 0; i < 40; ++i) ASSERT_EQ(Find(i), &plans[0]) << "hot entry " << i << " before " << next;
    Insert(next, &plans[1], kBound);
  }
  EXPECT_GT(cache.stats().evicted, 0u);
}

TEST_F(CacheTest, StaleEntriesGoFirst) {
  for (int32_t i = 0; i < 90; ++i) Insert(i, &plans[0], 100);
  epochs.Advance(EpochKind::kPerf);
  for (int32_t i = 200; i < 250; ++i) Insert(i, &plans[1], 100);
  for (int32_t i = 200; i < 250; ++i) ASSERT_EQ(Find(i), &plans[1]);
  EXPECT_EQ(cache.stats().evicted, 0u);
}

TEST(SingleFlightTest, OneLeads) {
  SingleFlight flights;
  Facts key = FactsOf(1);
  int op = 0, other_op = 0;
  auto leader = flights.Join(&op, key, 5);
  ASSERT_NE(leader, nullptr);
  auto other = flights.Join(&other_op, key, 5);
  EXPECT_NE(other, nullptr) << "equal keys of two operations are two flights";
  auto different = flights.Join(&op, FactsOf(2), 5);
  EXPECT_NE(different, nullptr) << "equal hashes of two keys are two flights";
  std::atomic<bool> returned = false;
  std::thread follower([&] {
    EXPECT_EQ(flights.Join(&op, key, 5), nullptr);
    returned = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(returned);
  flights.Complete(leader);
  follower.join();
  EXPECT_TRUE(returned);
  auto again = flights.Join(&op, key, 5);
  EXPECT_NE(again, nullptr);
  flights.Complete(again);
  flights.Complete(other);
  flights.Complete(different);
}

}  // namespace
}  // namespace lz
