#include "pipeline/cache.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/reclaimer.h"

namespace lz {

struct PlanCache::Entry {
  Facts key;
  uint64_t hash;
  EpochValues epochs;
  const Plan* plan;
  std::atomic<bool> used{false};  // since the last rebuild; readers set it at most once
};

struct PlanCache::Slots {
  explicit Slots(size_t capacity) : mask(capacity - 1), slots(capacity) {}
  struct Slot {
    std::atomic<uint64_t> hash{0};  // 0: empty; written after `entry`
    std::atomic<Entry*> entry{nullptr};
  };
  size_t mask;
  size_t size = 0;  // writers only
  std::vector<Slot> slots;
};

PlanCache::~PlanCache() {
  Slots* slots = slots_.load(std::memory_order_relaxed);
  if (!slots) return;
  for (Slots::Slot& s : slots->slots) delete s.entry.load(std::memory_order_relaxed);
  delete slots;
}

const Plan* PlanCache::Find(const Classifier& classifier, const Facts& facts, Facts* key, uint64_t* hash) const {
  const HotCode& hot = Hot();
  hot.classify(classifier, facts, key);
  *hash = hot.hash(*key) | 1;
  Slots* table = slots_.load(std::memory_order_acquire);
  if (!table) return nullptr;
  for (size_t i = *hash >> 8;; ++i) {
    const Slots::Slot& slot = table->slots[i & table->mask];
    const uint64_t h = slot.hash.load(std::memory_order_acquire);
    if (h == 0) return nullptr;
    if (h != *hash) continue;
    Entry* entry = slot.entry.load(std::memory_order_acquire);
    if (!hot.equal(entry->key, *key)) continue;
    if (!epochs_.AreCurrent(entry->epochs)) return nullptr;
    if (!entry->used.load(std::memory_order_relaxed)) entry->used.store(true, std::memory_order_relaxed);
    return entry->plan;
  }
}

void PlanCache::Insert(const Facts& key, uint64_t hash, const EpochValues& epochs, const Plan* plan, size_t max_size) {
  std::lock_guard lock(mutex_);
  Slots* table = slots_.load(std::memory_order_relaxed);
  if (!table || (table->size + 1) * 2 > table->slots.size() || table->size >= max_size) {
    const size_t size = table ? table->size : 0;
    const size_t keep = size >= max_size ? max_size / 2 : size;
    size_t capacity = 64;
    while (capacity < (keep + 1) * 4) capacity *= 2;
    Rebuild(capacity, keep);
    table = slots_.load(std::memory_order_relaxed);
  }
  Entry* entry = new Entry{key, hash, epochs, plan, {}};
  ++stats_.inserted;
  for (size_t i = hash >> 8;; ++i) {
    Slots::Slot& slot = table->slots[i & table->mask];
    Entry* old = slot.entry.load(std::memory_order_relaxed);
    if (!old) {
      slot.entry.store(entry, std::memory_order_release);
      slot.hash.store(hash, std::memory_order_release);
      ++table->size;
      return;
    }
    if (old->hash == hash && Hot().equal(old->key, key)) {  // a stale entry of the same class
      slot.entry.store(entry, std::memory_order_release);
      ++stats_.invalidated;
      Reclaimer::Get().Retire([old] { delete old; });
      return;
    }
  }
}

// Makes a new slot array with the current entries, recently used ones first, at most `keep`.
void PlanCache::Rebuild(size_t capacity, size_t keep) {
  Slots* old = slots_.load(std::memory_order_relaxed);
  std::vector<Entry*> current, dropped;
  if (old) {
    for (Slots::Slot& s : old->slots) {
      Entry* e = s.entry.load(std::memory_order_relaxed);
      if (e) (epochs_.AreCurrent(e->epochs) ? current : dropped).push_back(e);
    }
  }
  stats_.invalidated += dropped.size();
  std::stable_partition(current.begin(), current.end(),
                        [](const Entry* e) { return e->used.load(std::memory_order_relaxed); });
  if (current.size() > keep) {
    stats_.evicted += current.size() - keep;
    dropped.insert(dropped.end(), current.begin() + ptrdiff_t(keep), current.end());
    current.resize(keep);
  }
  Slots* fresh = new Slots(capacity);
  for (Entry* e : current) {
    e->used.store(false, std::memory_order_relaxed);
    for (size_t i = e->hash >> 8;; ++i) {
      Slots::Slot& slot = fresh->slots[i & fresh->mask];
      if (slot.entry.load(std::memory_order_relaxed)) continue;
      slot.entry.store(e, std::memory_order_relaxed);
      slot.hash.store(e->hash, std::memory_order_relaxed);
      break;
    }
  }
  fresh->size = current.size();
  slots_.store(fresh, std::memory_order_release);
  if (old) {
    Reclaimer::Get().Retire([old, dropped = std::move(dropped)] {
      for (Entry* e : dropped) delete e;
      delete old;
    });
  }
}

CacheStats PlanCache::stats() const {
  std::lock_guard lock(mutex_);
  CacheStats s = stats_;
  const Slots* table = slots_.load(std::memory_order_relaxed);
  s.entries = table ? table->size : 0;
  return s;
}

struct SingleFlight::Flight {
  const void* operation;
  Facts key;
  uint64_t hash;
  bool complete = false;
  std::condition_variable done;
};

std::shared_ptr<SingleFlight::Flight> SingleFlight::Join(const void* operation, const Facts& key, uint64_t hash) {
  std::unique_lock lock(mutex_);
  for (auto [at, end] = flights_.equal_range(hash); at != end; ++at) {
    const std::shared_ptr<Flight> flight = at->second;
    if (flight->operation != operation || !Hot().equal(flight->key, key)) continue;
    flight->done.wait_for(lock, std::chrono::seconds(5), [&] { return flight->complete; });
    return nullptr;
  }
  auto flight = std::make_shared<Flight>();
  flight->operation = operation;
  flight->key = key;
  flight->hash = hash;
  flights_.emplace(hash, flight);
  return flight;
}

void SingleFlight::Complete(const std::shared_ptr<Flight>& flight) {
  std::lock_guard lock(mutex_);
  flight->complete = true;
  for (auto [at, end] = flights_.equal_range(flight->hash); at != end; ++at) {
    if (at->second != flight) continue;
    flights_.erase(at);
    break;
  }
  flight->done.notify_all();
}

}  // namespace lz
