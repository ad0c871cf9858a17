// The loops of both roofs. Their sums are in registers and independent of each other: arrays that a compiler keeps in
// memory would measure memory.
#include "bench/roofline/roofline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>

#include "base/team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/roofline/roofline.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lz::roofline {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kSums = HWY_CAP_GE512 ? 16 : 10;  // with 32 and with 16 registers

uint64_t Sum(const uint64_t* words, int64_t count) {
  const hn::ScalableTag<uint64_t> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), step = kSums * lanes;
  hn::Vec<decltype(d)> sums[kSums];
  for (auto& sum : sums) sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    HWY_UNROLL(16)
    for (int s = 0; s < kSums; ++s) sums[s] = hn::Add(sums[s], hn::LoadU(d, words + i + s * lanes));
  }
  uint64_t sum = 0;
  for (const auto& part : sums) sum += hn::GetLane(hn::SumOfLanes(d, part));
  for (; i < count; ++i) sum += words[i];
  return sum;
}

void Copy(const uint64_t* from, uint64_t* to, int64_t count) {
  const hn::ScalableTag<uint64_t> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) hn::StoreU(hn::LoadU(d, from + i + s * lanes), d, to + i + s * lanes);
  }
  std::copy(from + i, from + count, to + i);
}

// Returns the number of multiply-adds; the result goes to `last`, so that they are not optimized away.
int64_t Multiply(int64_t rounds, float* last) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> sums[kSums];
  for (int s = 0; s < kSums; ++s) sums[s] = hn::Set(d, float(s));
  const auto factor = hn::Set(d, 0.999f), added = hn::Set(d, 0.5f);
  for (int64_t round = 0; round < rounds; ++round) {
    HWY_UNROLL(16)
    for (int s = 0; s < kSums; ++s) sums[s] = hn::MulAdd(sums[s], factor, added);
  }
  *last = 0;
  for (const auto& part : sums) *last += hn::GetLane(part);
  return rounds * kSums * int64_t(hn::Lanes(d));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz::roofline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz::roofline {
namespace {
HWY_EXPORT(Sum);
HWY_EXPORT(Copy);
HWY_EXPORT(Multiply);
}  // namespace

uint64_t ReadStream(const void* data, int64_t bytes, const lz_parallel& parallel) {
  struct Job {
    const uint64_t* words;
    std::atomic<uint64_t> sum{0};
  } job{static_cast<const uint64_t*>(data)};
  const auto body = [](int64_t begin, int64_t end, void* context) {
    Job& job = *static_cast<Job*>(context);
    job.sum.fetch_add(HWY_DYNAMIC_DISPATCH(Sum)(job.words + begin, end - begin), std::memory_order_relaxed);
  };
  parallel.run(parallel.self, 0, bytes / 8, 1 << 15, body, &job);
  return job.sum;
}

void CopyStream(const void* from, void* to, int64_t bytes, const lz_parallel& parallel) {
  struct Job {
    const uint64_t* from;
    uint64_t* to;
  } job{static_cast<const uint64_t*>(from), static_cast<uint64_t*>(to)};
  const auto body = [](int64_t begin, int64_t end, void* context) {
    const Job& job = *static_cast<Job*>(context);
    HWY_DYNAMIC_DISPATCH(Copy)(job.from + begin, job.to + begin, end - begin);
  };
  parallel.run(parallel.self, 0, bytes / 8, 1 << 15, body, &job);
}

int64_t MultiplyAdds(int64_t rounds, const lz_parallel& parallel) {
  struct Job {
    int64_t rounds;
    std::atomic<int64_t> done{0};
    std::atomic<float> last{0};
  } job{rounds};
  const auto body = [](int64_t begin, int64_t end, void* context) {
    Job& job = *static_cast<Job*>(context);
    for (int64_t i = begin; i < end; ++i) {
      float last = 0;
      job.done.fetch_add(HWY_DYNAMIC_DISPATCH(Multiply)(job.rounds, &last), std::memory_order_relaxed);
      job.last.store(last, std::memory_order_relaxed);
    }
  };
  parallel.run(parallel.self, 0, std::max(1, parallel.num_threads), 1, body, &job);
  return std::isfinite(job.last.load()) ? job.done.load() : 0;
}

double ForkJoin(int64_t loops, const lz_parallel& parallel, bool team) {
  using Clock = std::chrono::steady_clock;
  struct Meeting {
    int32_t threads;
    std::atomic<int32_t> here{0};
  };
  const auto meet = [](int64_t begin, int64_t end, void* context) {
    auto& meeting = *static_cast<Meeting*>(context);
    meeting.here.fetch_add(int32_t(end - begin), std::memory_order_acq_rel);
    const auto patience = Clock::now() + std::chrono::milliseconds(10);
    while (meeting.here.load(std::memory_order_acquire) < meeting.threads && Clock::now() < patience) {
    }
  };
  const auto seconds_of = [&](const lz_parallel& threads) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < loops; ++i) {
      Meeting meeting{.threads = threads.num_threads};
      threads.run(threads.self, 0, threads.num_threads, 1, meet, &meeting);
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / double(std::max<int64_t>(loops, 1));
  };
  if (!team) return seconds_of(parallel);
  double seconds = 0;
  Team together;
  together.Run(parallel, [&] { seconds = seconds_of(together.AsParallel()); });
  return seconds;
}

}  // namespace lz::roofline
#endif  // HWY_ONCE
