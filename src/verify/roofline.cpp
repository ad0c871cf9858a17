#include "verify/roofline.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace lz::verify {
namespace {

// Not with the thread sanitizer: what picks a clone runs while the program is loaded, before the sanitizer can.
#if defined(__SANITIZE_THREAD__)
#define LZ_EVERY_TARGET
#elif defined(__x86_64__)
#define LZ_EVERY_TARGET __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LZ_EVERY_TARGET
#endif

constexpr int kLanes = 32;  // 8-byte words: four registers of 64 bytes, whose additions do not wait for each other
LZ_EVERY_TARGET uint64_t Sum(const uint64_t* words, int64_t count) {
  uint64_t sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += words[i + lane];
  }
  for (; i < count; ++i) sums[0] += words[i];
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

constexpr int kAccumulators = 256;  // 16 registers of 64 bytes
LZ_EVERY_TARGET float Multiply(int64_t rounds) {
  float sums[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sums[i] = float(i);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kAccumulators; ++i) sums[i] = __builtin_fmaf(sums[i], 0.999f, 0.5f);
  }
  float sum = 0;
  for (const float s : sums) sum += s;
  return sum;
}

}  // namespace

uint64_t ReadStream(const void* data, int64_t bytes, const lz_parallel& parallel) {
  struct Job {
    const uint64_t* words;
    std::atomic<uint64_t> sum{0};
  } job{static_cast<const uint64_t*>(data)};
  const auto body = [](int64_t begin, int64_t end, void* context) {
    Job& job = *static_cast<Job*>(context);
    job.sum.fetch_add(Sum(job.words + begin, end - begin), std::memory_order_relaxed);
  };
  parallel.run(parallel.self, 0, bytes / 8, 1 << 15, body, &job);
  return job.sum;
}

int64_t MultiplyAdds(int64_t rounds, const lz_parallel& parallel) {
  struct Job {
    int64_t rounds;
    std::atomic<float> last{0};
  } job{rounds};
  const auto body = [](int64_t begin, int64_t end, void* context) {
    Job& job = *static_cast<Job*>(context);
    for (int64_t i = begin; i < end; ++i) job.last.store(Multiply(job.rounds), std::memory_order_relaxed);
  };
  const int64_t threads = std::max(1, parallel.num_threads);
  parallel.run(parallel.self, 0, threads, 1, body, &job);
  return std::isfinite(job.last.load()) ? rounds * kAccumulators * threads : 0;
}

}  // namespace lz::verify
