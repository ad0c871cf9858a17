// Readers, writers and invalidation at once. Meant for the thread sanitizer too; the counts must hold in any build.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/reclaimer.h"
#include "engine/engine.h"
#include "verify/case.h"

namespace lz {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr int kRounds = 300;
#else
constexpr int kRounds = 3000;
#endif

// A value that freed memory would not hold any more.
struct Boxed {
  explicit Boxed(int64_t v) : value(v), check(~v) {}
  ~Boxed() { check = value = 0; }
  int64_t value, check;
};

TEST(ReclaimerRace, ReadersNeverSeeWhatIsFreed) {
  std::atomic<Boxed*> current = new Boxed(0);
  std::atomic<bool> stop = false;
  std::atomic<int64_t> broken = 0, freed = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        Reclaimer::Guard guard;
        const Boxed* b = current.load(std::memory_order_acquire);
        if (b->value != ~b->check) broken.fetch_add(1);
      }
    });
  }
  for (int i = 1; i <= kRounds; ++i) {
    Boxed* old = current.exchange(new Boxed(i), std::memory_order_acq_rel);
    Reclaimer::Get().Retire([old, &freed] {
      delete old;
      freed.fetch_add(1);
    });
  }
  stop = true;
  for (std::thread& t : readers) t.join();
  Reclaimer::Get().Retire([] {});
  EXPECT_EQ(broken, 0);
  EXPECT_EQ(freed, kRounds);
  delete current.load();
}

// The plan that an entry was made with carries the epoch that was current then: after Advance() has returned, no lookup
// may give a plan from before.
TEST(CacheRace, NoStaleHitAfterInvalidation) {
  Registry registry;
  const Operation& op = *registry.Find("rms_norm");
  Epochs epochs;
  PlanCache cache(epochs);
  std::vector<Plan> plans(size_t(kRounds) + 2);
  for (size_t i = 0; i < plans.size(); ++i) plans[i].id = uint32_t(i);
  Facts facts{};
  facts.v[kSlotGeneration] = 1;
  std::atomic<uint64_t> valid = 1;  // plans with a smaller number are stale
  std::atomic<uint64_t> stale = 0, hits = 0;
  std::atomic<bool> stop = false;
  const auto reader = [&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t at_least = valid.load(std::memory_order_acquire);
      Facts key;
      uint64_t hash;
      const Reclaimer::Guard guard;
      if (const Plan* plan = cache.Find(op.state().classifier, facts, &key, &hash)) {
        hits.fetch_add(1, std::memory_order_relaxed);
        if (plan->id < at_least) stale.fetch_add(1);
        continue;
      }
      const EpochValues before = epochs.Current();
      const uint64_t number = valid.load(std::memory_order_acquire);  // the selection reads what holds now
      cache.Insert(key, hash, before, &plans[number], 100);
    }
  };
  std::thread a(reader), b(reader);
  for (int i = 0; i < kRounds; ++i) {
    // What an invalidation stands for changes first, then the epoch advances.
    const uint64_t next = uint64_t(i) + 2;
    epochs.Advance(EpochKind::kCapabilities);
    valid.store(next, std::memory_order_release);
    epochs.Advance(EpochKind::kPolicy);
    if (i % 64 != 0) continue;
    const uint64_t seen = hits.load();  // let readers hit
    while (hits.load() == seen) std::this_thread::yield();
  }
  stop = true;
  a.join();
  b.join();
  EXPECT_EQ(stale, 0u);
  std::cout << hits << " hits, " << stale << " stale\n";
}

TEST(CacheRace, GrowsUnderReaders) {
  Registry registry;
  const Operation& op = *registry.Find("rms_norm");
  Epochs epochs;
  PlanCache cache(epochs);
  std::vector<Plan> plans(4096);
  std::atomic<int32_t> inserted = 0;
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> wrong = 0;
  const auto facts_of = [](int32_t i) {
    Facts f{};
    f.v[kSlotGeneration] = 1;
    f.v[kSlotPolicy] = i;
    return f;
  };
  const auto reader = [&](uint32_t seed) {
    while (!stop.load(std::memory_order_relaxed)) {
      const int32_t n = inserted.load(std::memory_order_acquire);
      if (n == 0) continue;
      seed = seed * 1664525u + 1013904223u;
      const int32_t i = int32_t(seed >> 8) % n;
      Facts key;
      uint64_t hash;
      const Reclaimer::Guard guard;
      if (cache.Find(op.state().classifier, facts_of(i), &key, &hash) != &plans[size_t(i)]) wrong.fetch_add(1);
    }
  };
  std::thread a(reader, 1), b(reader, 2);
  for (int32_t i = 0; i < 4000; ++i) {
    Facts key;
    uint64_t hash;
    (void)cache.Find(op.state().classifier, facts_of(i), &key, &hash);
    cache.Insert(key, hash, epochs.Current(), &plans[size_t(i)], 100000);
    inserted.store(i + 1, std::memory_order_release);
  }
  stop = true;
  a.join();
  b.join();
  EXPECT_EQ(wrong, 0u);
}

// N threads miss the same class at once: one selection.
TEST(SelectorRace, OneSelectionForManyThreads) {
  Selector selector;
  std::atomic<int> evaluations = 0;
  selector.set_measurements([&](const KernelEntry& k, const BoundCall&) -> std::optional<Measurement> {
    if (k.spec.reference) {
      evaluations.fetch_add(1);
      std::this_thread::yield();
    }
    return std::nullopt;
  });
  const Operation& op = *selector.registry().Find("rms_norm");
  constexpr int kThreads = 6, kTimes = kRounds / 20;
  for (int round = 0; round < kTimes; ++round) {
    selector.Invalidate(EpochKind::kPerf);
    evaluations = 0;
    std::atomic<int> ready = 0;
    std::array<const Plan*, kThreads> plans{};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        auto c = verify::ParseCase(op, "input=f32[2,64] weight=f32[64]");
        Request r = c->MakeRequest();
        if (!selector.Bind(r).ok()) return;
        ready.fetch_add(1);
        while (ready.load() < kThreads) std::this_thread::yield();
        auto plan = selector.Select(r);
        if (plan.ok()) plans[size_t(t)] = *plan;
      });
    }
    for (std::thread& t : threads) t.join();
    ASSERT_EQ(evaluations, 1) << "round " << round;
    for (const Plan* p : plans) ASSERT_EQ(p, plans[0]);
    ASSERT_NE(plans[0], nullptr);
  }
}

// Two threads miss one class: with deduplication the second waits for the first one's selection, without it both
// select.
TEST(SelectorRace, WithoutDeduplicationNobodyWaits) {  // proves: cache.enable_deduplication
  for (const bool deduplicate : {true, false}) {
    Selector selector;
    const std::string text = deduplicate ? "true" : "false";
    ASSERT_TRUE(selector.policies().Configure(R"({"cache": {"enable_deduplication": )" + text + "}}").ok());
    std::atomic<int> selecting = 0;
    selector.set_measurements([&](const KernelEntry& k, const BoundCall&) -> std::optional<Measurement> {
      if (!k.spec.reference) return std::nullopt;
      selecting.fetch_add(1);
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(deduplicate ? 200 : 20000);
      while (selecting.load() < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      return std::nullopt;
    });
    const Operation& op = *selector.registry().Find("rms_norm");
    const auto select = [&] {
      auto c = verify::ParseCase(op, "input=f32[2,64] weight=f32[64]");
      Request r = c->MakeRequest();
      EXPECT_TRUE(selector.Bind(r).ok() && selector.Select(r).ok());
    };
    std::thread a(select), b(select);
    a.join();
    b.join();
    EXPECT_EQ(selecting, deduplicate ? 1 : 2);
  }
}

// A policy that denies a kernel is in force for every selection that starts after Configure returned.
// As a call site does it.
Result<const Plan*> SelectAt(Selector& selector, Request& r, InlineCache& site) {
  if (const Plan* plan = LookupInline(site, r.facts, selector.epochs())) return plan;
  return selector.Select(r, site);
}

TEST(SelectorRace, NoStalePlanAfterConfigure) {
  Selector selector;
  const Operation& op = *selector.registry().Find("rms_norm");
  std::atomic<int> state = 0;  // 0 mod 2: changing; 1 mod 4: references only since before the store; 3 mod 4: all
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> stale = 0, calls = 0;
  const auto caller = [&] {
    auto c = verify::ParseCase(op, "input=f32[2,64] weight=f32[64]");
    InlineCache site;
    while (!stop.load(std::memory_order_relaxed)) {
      const int before = state.load(std::memory_order_acquire);
      Request r = c->MakeRequest();
      if (!selector.Bind(r).ok()) continue;
      auto plan = calls.load(std::memory_order_relaxed) % 3 ? SelectAt(selector, r, site) : selector.Select(r);
      const int after = state.load(std::memory_order_acquire);
      calls.fetch_add(1, std::memory_order_relaxed);
      if (!plan.ok() || before != after) continue;
      const bool simd = !(*plan)->kernel->spec.reference;
      if (before % 4 == 1 && simd) stale.fetch_add(1);
      if (before % 4 == 3 && !simd) stale.fetch_add(1);
    }
  };
  std::thread a(caller), b(caller);
  for (int i = 0; i < kRounds / 100; ++i) {
    for (const bool deny : {true, false}) {
      if (state.load() != 0) state.fetch_add(1);
      Status status = selector.policies().Configure(deny ? R"({"enabled": false})" : R"({"enabled": true})");
      ASSERT_TRUE(status.ok()) << status.Text();
      selector.Invalidate(EpochKind::kPolicy);
      state.fetch_add(1);
      for (int spin = 0; spin < 2; ++spin) std::this_thread::yield();
    }
  }
  stop = true;
  a.join();
  b.join();
  EXPECT_EQ(stale, 0u);
  std::cout << calls << " calls, " << stale << " stale\n";
}

// Measured records that replace each other replace the classifier, which is freed under threads that select.
TEST(SelectorRace, ClassifiersAreReplacedUnderCallers) {
  Selector selector;
  const Operation& op = *selector.registry().Find("rms_norm");
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> calls = 0, failed = 0;
  const auto caller = [&] {
    auto c = verify::ParseCase(op, "input=f32[2,64] weight=f32[64]");
    InlineCache site;
    while (!stop.load(std::memory_order_relaxed)) {
      Request r = c->MakeRequest();
      if (!selector.Bind(r).ok()) continue;
      const auto plan =
          calls.fetch_add(1, std::memory_order_relaxed) % 3 ? SelectAt(selector, r, site) : selector.Select(r);
      if (!plan.ok() || !selector.Explain(r).ok()) failed.fetch_add(1);
    }
  };
  std::thread a(caller), b(caller);
  for (int64_t i = 0; i < kRounds / 10; ++i) {
    const Registry::MeasuredConditions conditions = {
        {&op, {{"hidden", Rel::kGe, 32 + i}, {"hidden", Rel::kGe, 65 + i}}}};
    ASSERT_TRUE(selector.registry().ReplaceMeasured(conditions).ok());
    selector.Invalidate(EpochKind::kPerf);
    const uint64_t seen = calls.load();
    while (calls.load() < seen + 2) std::this_thread::yield();
  }
  stop = true;
  a.join();
  b.join();
  EXPECT_EQ(failed, 0u);
  ASSERT_TRUE(selector.registry().ReplaceMeasured({}).ok());
  EXPECT_LE(Reclaimer::Get().num_waiting(), 2u);
}

// A kernel that is removed and registered again is chosen exactly while it is there.
TEST(SelectorRace, NoPlanOfARemovedKernel) {
  Selector selector;
  Registry& registry = selector.registry();
  const Operation& op = *registry.Find("rms_norm");
  constexpr std::array<std::string_view, 1> kAccepts = {"weight"};
  const auto launch = [](const lz_kernel_args*) { return int32_t{0}; };
  const KernelSpec spec{
      .id = "a.k", .operation = "norm.rms", .dtypes = kFloats, .accepts = kAccepts, .priority = 99, .launch = launch};
  std::atomic<int> state = 0;  // 0 mod 2: changing; 1 mod 4: registered; 3 mod 4: removed
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> wrong = 0, calls = 0;
  const auto caller = [&] {
    auto c = verify::ParseCase(op, "input=f32[2,64] weight=f32[64]");
    InlineCache site;
    while (!stop.load(std::memory_order_relaxed)) {
      const int before = state.load(std::memory_order_acquire);
      Request r = c->MakeRequest();
      if (!selector.Bind(r).ok()) continue;
      auto plan = calls.load(std::memory_order_relaxed) % 3 ? SelectAt(selector, r, site) : selector.Select(r);
      const int after = state.load(std::memory_order_acquire);
      calls.fetch_add(1, std::memory_order_relaxed);
      if (before != after || before % 2 == 0) continue;
      if (!plan.ok() || ((*plan)->kernel->id == "a.k") != (before % 4 == 1)) wrong.fetch_add(1);
    }
  };
  std::thread a(caller), b(caller);
  for (int i = 0; i < kRounds / 10; ++i) {
    const Registry::Registration one{&spec, {}, "a"};
    state.store(4 * i);
    if (i % 2 == 0) {
      EXPECT_TRUE(registry.Register({&one, 1}).ok());
    } else {
      EXPECT_EQ(registry.Remove("a"), 1u);
    }
    selector.Invalidate(EpochKind::kCapabilities);
    state.store(i % 2 == 0 ? 4 * i + 1 : 4 * i + 3);
    const uint64_t seen = calls.load();
    while (calls.load() < seen + 4) std::this_thread::yield();
  }
  stop = true;
  a.join();
  b.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace lz
