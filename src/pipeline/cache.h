// 4 cache: the hot path. Two levels, both complete: a hit compares every fact and every epoch.
//
//   InlineCache
//          the cache of one call site: a class of calls as lo <= fact <= hi for all 32 facts at once, with its plan.
//          Owned by one thread at a time (a call site, a prepared handle under the GIL): no atomics but one load of
//          the generation.
//   Table  the plan cache, one per operation, from class to plan. Readers take no lock and write nothing shared:
//
//            facts --classify--> key (32 classes) --hash--> slots: [hash | entry*] [hash | entry*] ...
//                                                                        |
//                                                entry: key, epochs, plan (immutable, swapped whole)
//
//          Writers hold a mutex, publish entries with a release store and replace the slot array when it is full or
//          when its entries are stale. What they unlink stays in the Reclaimer until no reader can hold it.
//
// An epoch advances when the data that it versions change, and the generation advances with any of them. An entry
// stores the epochs, an inline cache the generation, as they were before its selection began: a choice made from old
// data is never current.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "core/facts.h"
#include "registry/classifier.h"

namespace lz {

struct Plan;

enum class EpochKind : uint8_t { kPolicy, kCapabilities, kPerf, kCount };
using EpochValues = std::array<uint64_t, size_t(EpochKind::kCount)>;

// Each has a cache line of its own: an invalidation touches nothing else that readers need.
class Epochs {
 public:
  void Advance(EpochKind kind) {
    values_[size_t(kind)].value.fetch_add(1, std::memory_order_acq_rel);
    generation_.value.fetch_add(1, std::memory_order_acq_rel);
  }
  uint64_t Generation() const { return generation_.value.load(std::memory_order_acquire); }
  EpochValues Current() const {
    EpochValues e;
    for (size_t i = 0; i < e.size(); ++i) e[i] = values_[i].value.load(std::memory_order_acquire);
    return e;
  }
  bool AreCurrent(const EpochValues& e) const {
    const auto differs = [&](EpochKind k) {
      return e[size_t(k)] ^ values_[size_t(k)].value.load(std::memory_order_acquire);
    };
    return (differs(EpochKind::kPolicy) | differs(EpochKind::kCapabilities) | differs(EpochKind::kPerf)) == 0;
  }

 private:
  struct alignas(64) Padded {
    std::atomic<uint64_t> value{1};
  };
  std::array<Padded, size_t(EpochKind::kCount)> values_;
  Padded generation_;  // number of advances of any epoch
};

struct InlineCache {
  Facts lo, hi;
  uint64_t generation = 0;     // 0 is never current
  const Plan* plan = nullptr;  // nullptr: empty
};

// The SIMD parts, chosen once for this CPU (cache_hot.cpp). lookup_inline returns its plan, or nullptr.
struct HotCode {
  const Plan* (*lookup_inline)(const InlineCache& site, const Facts& facts, const Epochs& epochs);
  void (*classify)(const Classifier& classifier, const Facts& facts, Facts* key);
  uint64_t (*hash)(const Facts& key);
  bool (*equal)(const Facts& a, const Facts& b);
};
extern const HotCode kHotCode;
inline const HotCode& Hot() { return kHotCode; }

inline const Plan* LookupInline(const InlineCache& site, const Facts& facts, const Epochs& epochs) {
  return Hot().lookup_inline(site, facts, epochs);
}

struct CacheStats {
  uint64_t entries = 0, inserted = 0, evicted = 0, invalidated = 0;
};

class PlanCache {
 public:
  explicit PlanCache(const Epochs& epochs) : epochs_(epochs) {}
  ~PlanCache();

  // Call it inside a Reclaimer::Guard. Returns nullptr if not cached, or stale. Fills `key` and `hash` for a
  // following Insert.
  const Plan* Find(const Classifier& classifier, const Facts& facts, Facts* key, uint64_t* hash) const;
  // `epochs`: their values before the selection started.
  void Insert(const Facts& key, uint64_t hash, const EpochValues& epochs, const Plan* plan, size_t max_size);
  CacheStats stats() const;

 private:
  struct Entry;
  struct Slots;
  void Rebuild(size_t capacity, size_t keep);

  const Epochs& epochs_;
  std::atomic<Slots*> slots_{nullptr};
  mutable std::mutex mutex_;
  CacheStats stats_;
};

// One selection per missed key: the first caller selects; the others wait for its result, at most 5 s, and then select
// for themselves. Callers that hold the GIL release it first.
class SingleFlight {
 public:
  struct Flight;
  // Returns a flight to complete (leader), or nullptr after waiting for one that another thread completed or that took
  // too long.
  std::shared_ptr<Flight> Join(const void* operation, const Facts& key, uint64_t hash);
  void Complete(const std::shared_ptr<Flight>& flight);

 private:
  std::mutex mutex_;
  std::multimap<uint64_t, std::shared_ptr<Flight>> flights_;
};

}  // namespace lz
