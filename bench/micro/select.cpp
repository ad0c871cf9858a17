// Times a selection: an inline hit (a call site cache that one thread owns), a table hit (classified, hashed and
// compared in full), a cold miss over 20 candidates, and both kinds of hit while another thread invalidates a thousand
// times per second, compared with a mutex and a hash map. Facts are bound, as in a prepared call; 16 calls take turns.
//   lz_bench_select [--repeat N]        one JSON object on standard output
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"

namespace lz {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kCalls = 16;
constexpr int kCandidates = 20;

double NanosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}
double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Samples of ns per call, each over `calls` calls of body(i).
template <class Body>
std::vector<double> Sample(int samples, int calls, Body&& body) {
  for (int i = 0; i < calls; ++i) body(i);
  std::vector<double> ns;
  for (int s = 0; s < samples; ++s) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) body(i);
    ns.push_back(NanosecondsSince(start) / calls);
  }
  return ns;
}

// A chain of dependent additions of two registers takes one cycle each on every current core; those of a constant may
// take none (Intel, from Golden Cove on).
double CoreGhz() {
  constexpr int64_t kSteps = 20'000'000;
  std::vector<double> ghz;
  for (int i = 0; i < 5; ++i) {
    uint64_t x = 1;
    const uint64_t y = 3;
    const auto start = Clock::now();
    for (int64_t k = 0; k < kSteps; k += 10) {
      asm volatile(
          "add %1, %0\nadd %1, %0\nadd %1, %0\nadd %1, %0\nadd %1, %0\nadd %1, %0\nadd %1, %0\nadd %1, %0\nadd %1, "
          "%0\nadd %1, %0"
          : "+&r"(x)
          : "r"(y));
    }
    ghz.push_back(double(kSteps) / NanosecondsSince(start));
  }
  return *std::max_element(ghz.begin(), ghz.end());
}

// A bound call of rms_norm on [rows, 64 (1 + i)].
struct Call {
  std::vector<float> data;
  int64_t shape[2], strides[2], weight_stride[1] = {1};
  Request request{*Engine::Get().Find("rms_norm")};
  InlineCache site;

  explicit Call(int i) : data(4096) {
    shape[0] = 1 + i % 4;
    shape[1] = 64 * (1 + i);
    strides[0] = shape[1];
    strides[1] = 1;
    data.resize(size_t(shape[0] * shape[1]));
    request.tensors[0] = {data.data(), {1, 0}, 2, {2, 32, 1}, shape, strides, 0};
    request.tensors[1] = {data.data(), {1, 0}, 1, {2, 32, 1}, shape + 1, weight_stride, 0};
    Status status = Engine::Get().Bind(request);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.Text().c_str());
  }
};

// Kernels that differ only in their id, with constraints like real ones, so that a miss checks 20 candidates.
int32_t DoNothing(const lz_kernel_args*) { return 0; }
void RegisterCandidates() {
  static std::deque<std::string> ids;
  static constexpr auto kRows = std::to_array<Constraint>({{"hidden", Rel::kGe, 32},
                                                           {"hidden", Rel::kLe, 16384},
                                                           {"hidden", Rel::kMultipleOf, 8},
                                                           {"weight.same_dtype", Rel::kEq, 1},
                                                           {"... * hidden", Rel::kLe, int64_t{1} << 31},
                                                           {"device.isa", Rel::kHasBits, kIsaSse42}});
  Registry& registry = Engine::Get().selector().registry();
  const Operation& op = *Engine::Get().Find("rms_norm");
  std::vector<KernelSpec> specs;
  for (int i = int(registry.Kernels(&op).size()); i < kCandidates; ++i) {
    ids.push_back("bench.norm.rms." + std::to_string(i));
    specs.push_back({.id = ids.back(),
                     .operation = "norm.rms",
                     .dtypes = kF32BF16,
                     .constraints = kRows,
                     .accepts = kAcceptsAll,
                     .priority = 20,
                     .deterministic = true,
                     .launch = &DoNothing});
  }
  std::vector<Registry::Registration> rows;
  for (const KernelSpec& spec : specs) rows.push_back({&spec, {}, {}});
  const Status status = registry.Register(rows);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.Text().c_str());
}

// The fastest kernel changes with each invalidation. A reader that saw version v before its call and version w in
// progress after it may get the kernel of any version from v to w; one from before v is a stale hit.
struct Staleness {
  std::atomic<int64_t> fastest{0};    // being made current
  std::atomic<int64_t> published{0};  // invalidate() has returned for it
  std::atomic<bool> stop{false};
  std::vector<const KernelEntry*> kernels;

  nlohmann::json Run(bool inline_level, double seconds) {
    Engine& engine = Engine::Get();
    for (const KernelEntry* k : engine.selector().registry().Kernels(engine.Find("rms_norm"))) {
      if (k->source == "bench") kernels.push_back(k);
    }
    engine.selector().set_measurements([this](const KernelEntry& k, const BoundCall&) -> std::optional<Measurement> {
      const bool fast = &k == kernels[size_t(fastest.load(std::memory_order_acquire)) % kernels.size()];
      return Measurement{.median_us = fast ? 1.0 : 100.0, .noise = 0.01, .confidence = 1};
    });
    engine.selector().Invalidate(EpochKind::kPerf);
    stop = false;
    std::thread writer([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        fastest.fetch_add(1, std::memory_order_acq_rel);
        engine.selector().Invalidate(EpochKind::kPerf);
        published.fetch_add(1, std::memory_order_release);
      }
    });
    int64_t hits = 0, stale = 0;
    Call call(3);
    const int64_t first = published.load();
    const auto start = Clock::now();
    while (NanosecondsSince(start) < seconds * 1e9) {
      for (int i = 0; i < 64; ++i, ++hits) {
        const int64_t version = published.load(std::memory_order_acquire);
        const Plan* plan = inline_level ? engine.Lookup(call.site, call.request.facts) : nullptr;
        if (!plan) plan = inline_level ? *engine.Select(call.request, call.site) : *engine.Select(call.request);
        const int64_t newest = fastest.load(std::memory_order_acquire);
        if (newest - version >= int64_t(kernels.size()) - 1) continue;  // this thread slept too long to tell
        bool current = false;
        for (int64_t v = version; v <= newest; ++v) current |= plan->kernel == kernels[size_t(v) % kernels.size()];
        stale += !current;
      }
    }
    const double ns = NanosecondsSince(start) / double(hits);
    stop = true;
    writer.join();
    engine.selector().set_measurements({});
    engine.selector().Invalidate(EpochKind::kPerf);
    return {{"ns", ns}, {"calls", hits}, {"stale_hits", stale}, {"invalidations", published.load() - first}};
  }
};

// The usual design of a dispatcher: a lock, a hash map, a key of the same 128 bytes.
struct FactsHash {
  size_t operator()(const Facts& f) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(f.v), sizeof(f.v)});
  }
};
struct FactsEqual {
  bool operator()(const Facts& a, const Facts& b) const { return std::memcmp(a.v, b.v, sizeof(a.v)) == 0; }
};

int Run(int repeat) {
  Engine& engine = Engine::Get();
  if (!engine.startup().ok()) {
    std::fprintf(stderr, "%s\n", engine.startup().Text().c_str());
    return 1;
  }
  RegisterCandidates();
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(std::make_unique<Call>(i));
  for (auto& c : calls) (void)engine.Select(c->request, c->site);

  const Plan* volatile sink = nullptr;
  const auto inline_hit = [&](int i) {
    sink = engine.Lookup(calls[size_t(i % kCalls)]->site, calls[size_t(i % kCalls)]->request.facts);
  };
  Missed missed;
  const auto table_hit = [&](int i) { sink = engine.selector().Lookup(calls[size_t(i % kCalls)]->request, &missed); };
  const auto loop = [&](int i) { sink = reinterpret_cast<const Plan*>(calls[size_t(i % kCalls)].get()); };
  std::mutex mutex;
  std::unordered_map<Facts, const Plan*, FactsHash, FactsEqual> map;
  for (auto& c : calls) map[c->request.facts] = c->site.plan;
  const auto map_hit = [&](int i) {
    std::lock_guard lock(mutex);
    sink = map.find(calls[size_t(i % kCalls)]->request.facts)->second;
  };
  std::vector<double> inline_ns, table_ns, map_ns, loop_ns, again_ns;
  for (int r = 0; r < repeat; ++r) {  // interleaved
    for (double v : Sample(1, 200000, loop)) loop_ns.push_back(v);
    for (double v : Sample(1, 200000, inline_hit)) inline_ns.push_back(v);
    for (double v : Sample(1, 200000, table_hit)) table_ns.push_back(v);
    for (double v : Sample(1, 200000, map_hit)) map_ns.push_back(v);
    for (double v : Sample(1, 200000, inline_hit)) again_ns.push_back(v);
  }
  std::vector<double> cold;
  size_t candidates = 0;
  for (int r = 0; r < repeat * 20; ++r) {
    Call& c = *calls[size_t(r % kCalls)];
    engine.Invalidate();
    const auto start = Clock::now();
    sink = *engine.Select(c.request);
    cold.push_back(NanosecondsSince(start) / 1e3);
    if (r == 0) candidates = engine.selector().Explain(c.request)->candidates.size();
  }
  const double ghz = CoreGhz();
  Staleness staleness;
  const nlohmann::json writer_inline = staleness.Run(true, 1.0), writer_table = staleness.Run(false, 1.0);
  const double floor_ns = Median(loop_ns);
  const auto row = [&](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return nlohmann::json{{"median_ns", v[v.size() / 2]}, {"min_ns", v.front()}, {"p90_ns", v[v.size() * 9 / 10]}};
  };
  const double inline_median = Median(inline_ns), table_median = Median(table_ns);
  nlohmann::json out = {
      {"inline_hit_ns", inline_median},
      {"table_hit_ns", table_median},
      {"loop_ns", floor_ns},
      {"core_ghz", ghz},
      {"inline_hit_cycles", inline_median * ghz},
      {"table_hit_cycles", table_median * ghz},
      {"cold_miss_us", Median(cold)},
      {"cold_candidates", candidates},
      {"mutex_hash_map_ns", Median(map_ns)},
      {"aa_spread", std::abs(Median(again_ns) - inline_median) / inline_median},
      {"stale_hits", writer_inline["stale_hits"].get<int64_t>() + writer_table["stale_hits"].get<int64_t>()},
      {"with_writer", {{"inline", writer_inline}, {"table", writer_table}}},
      {"samples", {{"inline", row(inline_ns)}, {"table", row(table_ns)}, {"map", row(map_ns)}}},
      {"bars", {{"inline_hit_cycles", 14}, {"table_hit_cycles", 60}, {"cold_miss_us", 50}, {"stale_hits", 0}}}};
  std::printf("%s\n", out.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace lz

int main(int argc, char** argv) {
  int repeat = 15;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--repeat") == 0) repeat = std::max(1, std::atoi(argv[i + 1]));
  }
  return lz::Run(repeat);
}
