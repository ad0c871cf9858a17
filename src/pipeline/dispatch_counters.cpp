#include "pipeline/dispatch_counters.h"

#include <algorithm>
#include <bit>

namespace lz {

struct KernelCounters::Slot {
  std::atomic<const KernelEntry*> kernel{nullptr};
  std::atomic<uint64_t> runs{0}, failures{0}, fallbacks{0}, misses{0}, nanoseconds{0};
  std::array<std::atomic<uint64_t>, kLatencyBuckets> buckets{};
};

namespace {

void Add(std::atomic<uint64_t>& counter, uint64_t n = 1) { counter.fetch_add(n, std::memory_order_relaxed); }
uint64_t Get(const std::atomic<uint64_t>& counter) { return counter.load(std::memory_order_relaxed); }

}  // namespace

const std::shared_ptr<KernelCounters>& KernelCounters::OfProcess() {
  static const auto& counters = *new std::shared_ptr<KernelCounters>(std::make_shared<KernelCounters>());
  return counters;
}

KernelCounters::KernelCounters() : slots_(new Slot[kMaxKernels]) {}
KernelCounters::~KernelCounters() = default;

void KernelCounters::SetCounting(bool on) {
  if (counting_.exchange(on) == on) return;
  if (on) {
    AddObserver(OfProcess());
  } else {
    RemoveObserver(this);
  }
}

void KernelCounters::Ended(const KernelRun& run, const Status& status, double seconds) {
  if (run.kernel.index >= kMaxKernels) return Add(not_counted_);
  Slot& slot = slots_[run.kernel.index];
  if (!slot.kernel.load(std::memory_order_relaxed)) slot.kernel.store(&run.kernel, std::memory_order_release);
  Add(slot.runs);
  if (run.fallback) Add(slot.fallbacks);
  if (run.missed) Add(slot.misses);
  if (!status.ok()) return Add(slot.failures);
  const auto took = uint64_t(std::max(0.0, seconds) * 1e9);
  Add(slot.nanoseconds, took);
  Add(slot.buckets[std::min(size_t(std::bit_width(took)), kLatencyBuckets - 1)]);
}

std::vector<KernelCount> KernelCounters::Read() const {
  std::vector<KernelCount> counts;
  for (size_t i = 0; i < kMaxKernels; ++i) {
    const Slot& slot = slots_[i];
    KernelCount count{.kernel = slot.kernel.load(std::memory_order_acquire)};
    if (!count.kernel) continue;
    for (size_t b = 0; b < kLatencyBuckets; ++b) count.buckets[b] = Get(slot.buckets[b]);
    count.runs = Get(slot.runs);
    count.failures = Get(slot.failures);
    count.fallbacks = Get(slot.fallbacks);
    count.misses = Get(slot.misses);
    count.nanoseconds = Get(slot.nanoseconds);
    counts.push_back(count);
  }
  return counts;
}

}  // namespace lz
