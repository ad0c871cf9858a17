#include "engine/served_calls.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "perfdb/device_id.h"
#include "perfdb/record.h"
#include "perfdb/writer.h"
#include "pipeline/request_facts.h"
#include "platform/cuda_events.h"

namespace lz {
namespace {

constexpr size_t kMostClasses = 4096, kMostPending = 256;
constexpr int32_t kDeviceCuda = 2;
constexpr auto kPeriod = std::chrono::milliseconds(200);  // between two looks at events

bool IsSampled(double rate) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  return rate > 0 && std::uniform_real_distribution<double>()(random) < rate;
}

std::string Number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

// "bf16[1,512,32,128]" in the caller's order of axes; "@transposed" if the last two axes are swapped in memory.
std::string TensorText(const Request& r, size_t input) {
  const lz_tensor& t = r.tensors[input];
  std::string text = std::string(Info(DTypeOf(t)).short_name) + "[";
  const bool permuted = r.op->input(input).layout && r.layout > 0;
  for (int32_t d = 0; d < t.ndim; ++d) {
    const int32_t axis = permuted ? int32_t(r.op->layouts()[size_t(r.layout)][size_t(d)]) : d;
    text += (d ? "," : "") + std::to_string(t.shape[axis]);
  }
  const bool turned =
      t.ndim >= 2 && t.strides[t.ndim - 1] != 1 && t.strides[t.ndim - 2] == 1 && t.shape[t.ndim - 1] > 1;
  return text + (turned ? "]@transposed" : "]");
}

std::string ScalarText(const Param& p, const lz_scalar& s) {
  if (p.kind == ParamKind::kFloat) return Number(s.value.f);
  if (p.kind == ParamKind::kBool) return s.value.i ? "true" : "false";
  if (p.kind == ParamKind::kChoice) return std::string(ChoiceName(p.choices, s.value.i));
  return std::to_string(s.value.i);
}

// The call in the grammar of bench cases. Two calls have one line if they have one class.
std::string LineOf(const Request& r) {
  std::string line;
  const auto add = [&](std::string_view name, const std::string& value) {
    line += (line.empty() ? "" : " ") + std::string(name) + "=" + value;
  };
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if (r.tensors[i].ndim >= 0) add(r.op->input(i).name, TensorText(r, i));
  }
  for (size_t i = 0; i < r.op->num_scalars(); ++i) {
    if (r.scalars[i].given) add(r.op->scalar(i).name, ScalarText(r.op->scalar(i), r.scalars[i]));
  }
  if (!r.op->layout_names().empty() && r.layout >= 0) add("layout", r.op->layout_names()[size_t(r.layout)]);
  return line;
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

// A record of the call and its kernel, without times.
perfdb::Record RecordOf(const KernelRun& run) {
  const Request& r = run.request;
  const Device& device = Engine::Get().selector().context().device(r.device);
  perfdb::Record record;
  record.kernel_id = run.kernel.id;
  record.operation = run.kernel.operation;
  record.device_id = perfdb::DeviceId(device);
  record.sm_version = device.platform == Platform::kCuda ? device.fact(DeviceField::kSm) : 0;
  record.dtype = r.op->num_inputs() ? Info(EffectiveDType(r, 0)).name : "float32";
  for (size_t a = 0; a < r.op->axes().size(); ++a) record.axes[r.op->axes()[a]] = r.axes()[a];
  record.options = OptionsOf(r);
  record.cache_state = "cold";  // other operations' data pass through the caches between two calls
  record.protocol = kServedProtocol;
  record.timer = r.where.type == kDeviceCuda ? "cuda_event" : "wall";
  record.kernel_version = std::to_string(run.kernel.spec.version);
  record.layerzero_version = Engine::Version();
  record.build_id = Engine::BuildId();
  record.backend = run.kernel.id.substr(0, run.kernel.id.find('.'));
  if (!run.kernel.availability.version.empty()) record.backend_version = run.kernel.availability.version;
  if (!device.uuid.empty()) record.device_uuid = device.uuid;
  return record;
}

void SetTimes(perfdb::Record* record, std::vector<double> us) {
  std::ranges::sort(us);
  const size_t n = us.size();
  const double mean = std::accumulate(us.begin(), us.end(), 0.0) / double(n);
  double squares = 0;
  for (double one : us) squares += (one - mean) * (one - mean);
  const auto skipped = size_t(std::max(0.0, (double(n) - 1 - 1.96 * std::sqrt(double(n))) / 2));
  record->median_us = n % 2 ? us[n / 2] : (us[n / 2 - 1] + us[n / 2]) / 2;
  record->p95_us = us[size_t(std::ceil(0.95 * double(n - 1)))];
  record->samples = int64_t(n);
  record->variance_us = n > 1 ? squares / double(n - 1) : 0;
  record->low_us = us[skipped];
  record->high_us = us[n - 1 - skipped];
  record->measured_at = Now();
}

struct Samples {
  perfdb::Record record;
  std::vector<double> us;
};

struct Pending {  // a call whose events are on its stream
  std::unique_ptr<CudaTimer> timer;
  std::string key;
};

struct Class {
  std::string name, line, device, execution;
  perfdb::Record record;  // its operation, dtype, axes and options
  int64_t count = 0;
  std::map<std::string, int64_t> kernels;
};

class Served : public Observer {
 public:
  void Began(const KernelRun& run) override {
    const Request& r = run.request;
    const bool capturing = (r.flags & LZ_FLAG_CAPTURING) != 0;
    Open& open = Opened().emplace_back();
    open.sampled = !capturing && !run.kernel.spec.reference && IsSampled(rate_.load(std::memory_order_relaxed));
    if (!open.sampled || r.where.type != kDeviceCuda) return;
    open.timer = TakeTimer(r.where.id);
    open.sampled = open.timer != nullptr;
    if (open.sampled) open.timer->Start(r.stream);
  }

  void Ended(const KernelRun& run, const Status& status, double seconds) override {
    if (Opened().empty()) return;  // it began before this observer
    Open open = std::move(Opened().back());
    Opened().pop_back();
    if (open.timer) open.timer->Stop(run.request.stream);
    if (!status.ok()) return;
    if (recording_.load(std::memory_order_relaxed)) Count(run);
    if (open.sampled) Add(run, std::move(open.timer), seconds * 1e6);
  }

  void Sample(double rate, int64_t least) {
    least_.store(least, std::memory_order_relaxed);
    rate_.store(rate, std::memory_order_relaxed);
    if (rate <= 0) return;
    std::lock_guard lock(mutex_);
    if (!std::exchange(started_, true)) {
      perfdb::StartThread([](void* self) { static_cast<Served*>(self)->Work(); }, this);
    }
  }

  void Record(bool on) {
    std::lock_guard lock(mutex_);
    if (on) classes_.clear(), left_out_ = 0;
    recording_.store(on, std::memory_order_relaxed);
  }
  bool is_needed() const { return recording_.load() || rate_.load() > 0; }

  std::string Text() {
    std::lock_guard lock(mutex_);
    auto calls = nlohmann::ordered_json::array();
    for (const auto& [key, c] : classes_) {
      calls.push_back({{"operation", c.record.operation},
                       {"name", c.name},
                       {"line", c.line},
                       {"device", c.device},
                       {"execution", c.execution},
                       {"dtype", c.record.dtype},
                       {"axes", c.record.axes},
                       {"options", c.record.options},
                       {"count", c.count},
                       {"kernels", c.kernels}});
    }
    const nlohmann::ordered_json text = {
        {"calls", calls}, {"left_out", left_out_}, {"sampled", sampled_}, {"queued", queued_}};
    return text.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }

  void Flush(double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (Poll() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Queue(least_.load(std::memory_order_relaxed));
  }

 private:
  struct Open {  // a run that has begun on this thread
    bool sampled = false;
    std::unique_ptr<CudaTimer> timer;
  };
  static std::vector<Open>& Opened() {  // runs nest: a Python kernel may call another operation
    static thread_local std::vector<Open> opened;
    return opened;
  }

  std::unique_ptr<CudaTimer> TakeTimer(int device) {
    std::lock_guard lock(mutex_);
    if (pending_.size() >= kMostPending) return nullptr;
    const auto free = std::ranges::find_if(timers_, [&](const auto& timer) { return timer->device() == device; });
    if (free == timers_.end()) {
      auto made = std::make_unique<CudaTimer>(device);
      return made->ok() ? std::move(made) : nullptr;
    }
    auto timer = std::move(*free);
    timers_.erase(free);
    return timer;
  }

  void Count(const KernelRun& run) {
    const Request& r = run.request;
    const bool in_graph = (r.flags & LZ_FLAG_CAPTURING) != 0;
    std::string line = LineOf(r);
    const std::string device = r.where.type == kDeviceCuda ? "cuda:" + std::to_string(r.where.id) : "cpu";
    const std::string key = run.kernel.operation + "|" + line + "|" + device + (in_graph ? "|graph" : "|eager");
    std::lock_guard lock(mutex_);
    auto found = classes_.find(key);
    if (found == classes_.end()) {
      if (classes_.size() >= kMostClasses) return void(++left_out_);
      Class made{.name = std::string(r.op->name()),
                 .line = std::move(line),
                 .device = device,
                 .execution = in_graph ? "graph" : "eager",
                 .record = RecordOf(run),
                 .kernels = {}};
      found = classes_.emplace(key, std::move(made)).first;
    }
    ++found->second.count;
    ++found->second.kernels[run.kernel.id];
  }

  void Add(const KernelRun& run, std::unique_ptr<CudaTimer> timer, double us) {
    const std::string key = run.kernel.operation + "|" + LineOf(run.request) + "|" + run.kernel.id;
    std::lock_guard lock(mutex_);
    auto found = samples_.find(key);
    if (found == samples_.end()) {
      if (samples_.size() >= kMostClasses) return;
      found = samples_.emplace(key, Samples{RecordOf(run), {}}).first;
    }
    ++sampled_;
    if (timer) {
      pending_.push_back({std::move(timer), key});
    } else if (us > 0) {
      found->second.us.push_back(us);
    }
  }

  // Takes the times of events that are done. True: some are not.
  bool Poll() {
    std::lock_guard lock(mutex_);
    std::erase_if(pending_, [&](Pending& p) {
      double us = 0;
      if (!p.timer->Query(&us)) return false;
      if (!p.timer->ok()) return true;  // the device has failed: health knows
      if (const auto found = samples_.find(p.key); found != samples_.end() && us > 0) found->second.us.push_back(us);
      timers_.push_back(std::move(p.timer));
      return true;
    });
    return !pending_.empty();
  }

  // Hands records of at least `least` samples to the database's queue.
  void Queue(int64_t least) {
    std::vector<perfdb::Record> records;
    {
      std::lock_guard lock(mutex_);
      for (auto& [key, s] : samples_) {
        if (s.us.empty() || int64_t(s.us.size()) < least) continue;
        perfdb::Record& record = records.emplace_back(s.record);
        SetTimes(&record, std::exchange(s.us, {}));
      }
      queued_ += int64_t(records.size());
    }
    if (records.empty()) return;
    const nlohmann::json arguments = {{"document", perfdb::WriteRecords(records)}};
    (void)Engine::Get().Perfdb("queue", arguments.dump());
  }

  void Work() {
    while (true) {
      std::this_thread::sleep_for(kPeriod);
      (void)Poll();
      Queue(least_.load(std::memory_order_relaxed));
    }
  }

  std::mutex mutex_;
  std::map<std::string, Class> classes_;    // by operation, line, device and mode
  std::map<std::string, Samples> samples_;  // by operation, line and kernel
  std::vector<Pending> pending_;
  std::vector<std::unique_ptr<CudaTimer>> timers_;  // not in use
  int64_t left_out_ = 0, sampled_ = 0, queued_ = 0;
  bool started_ = false;
  std::atomic<bool> recording_{false};
  std::atomic<double> rate_{0};
  std::atomic<int64_t> least_{1};
};

// In force while something is recorded or sampled. A forked child gets one of its own: the other's lock may be held,
// and its thread is the parent's.
struct Current {
  std::mutex mutex;
  std::shared_ptr<Served> served = std::make_shared<Served>();
  bool observes = false;
  double rate = 0;
  int64_t least = 1;
};
std::atomic<Current*> g_current{nullptr};

Current& Get() {
  static Current& first = *[] {
    auto* made = new Current;  // never destroyed: threads may outlive main
    g_current.store(made);
    pthread_atfork(nullptr, nullptr, [] {
      const Current* const old = g_current.load();
      auto* child = new Current;
      if (old->observes) RemoveObserver(old->served.get());
      g_current.store(child);
      SampleServedCalls(old->rate, old->least);
    });
    return made;
  }();
  (void)first;
  return *g_current.load();
}

void Observe(Current& current) {
  const bool needed = current.served->is_needed();
  if (needed == std::exchange(current.observes, needed)) return;
  if (needed) {
    AddObserver(current.served);
  } else {
    RemoveObserver(current.served.get());
  }
}

}  // namespace

void SampleServedCalls(double rate, int64_t least) {
  if (rate <= 0 && !g_current.load()) return;  // nothing was ever on
  Current& current = Get();
  std::lock_guard lock(current.mutex);
  current.rate = rate, current.least = least;
  current.served->Sample(rate, least);
  Observe(current);
}

void RecordServedCalls(bool on) {
  Current& current = Get();
  std::lock_guard lock(current.mutex);
  current.served->Record(on);
  Observe(current);
}

std::string ServedCallsText() { return Get().served->Text(); }

void FlushServedCalls(double seconds) {
  if (g_current.load()) Get().served->Flush(seconds);
}

}  // namespace lz
