// What is known about kernels that have failed: a breaker for each kernel and device, the quarantine, lost devices, and
// whether the process should be started again. Selection asks it on a miss; a hit never does: whenever the answer for a
// kernel changes, `changed` is called, which makes cached plans stale. Any thread may call it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ticker.h"
#include "health/breaker.h"
#include "health/markers.h"
#include "health/quarantine.h"
#include "platform/device.h"
#include "registry/registry.h"

namespace lz {

struct HealthLimits {
  BreakerLimits breaker;
  int error_budget = 100;  // failed runs within kBudgetSeconds after which the process should be started again
  std::string folder;      // of quarantine.json and the marks; empty: nothing is kept on disk
  std::string build;       // names the build of own kernels
};

// One run of a kernel that went wrong. kFailed: another kernel has answered the same call, whose data are not at fault.
struct Failure {
  const KernelEntry& kernel;
  int32_t device;  // index in the engine's devices
  Outcome outcome;
  std::string text;
  std::vector<CallCondition> call;  // the class of the call
  bool capturing = false;           // into a CUDA graph
};

// The version of a kernel's code: of its library, its row and its descriptor; `build` for kernels of this build.
std::string KernelVersion(const KernelEntry& kernel, const std::string& build);

class Health {
  struct Resolved {  // a row for one operation
    size_t row;
    Registry::Thresholds rows;
  };

 public:
  static constexpr double kBudgetSeconds = 600;
  static constexpr int kBackendFailures = 3;            // open breakers of one backend that refuse all of its kernels
  static constexpr int64_t kFirstStrikeSeconds = 3600;  // of a crash or a lost device, which may be another's fault

  using Devices = std::function<const Device&(int32_t)>;
  Health(Registry& registry, Devices devices, std::function<void()> changed);
  void SetLimits(HealthLimits limits);
  // Reads the quarantine that the library carries, the machine's, and the marks of processes that have ended. Once.
  void Begin();
  // Replaces the clock of breakers, for tests.
  void set_clock(std::function<double()> seconds) { clock_ = std::move(seconds); }

  // ---- selection
  // True if no kernel has failed in this process.
  bool quiet() const { return quiet_.load(std::memory_order_acquire); }
  // What holds for the candidates of one call. It keeps the lock of Health.
  class Query {
   public:
    Query(Health& health, const Operation& op, int32_t device);
    bool empty() const { return !failures_ && !rows_; }
    // The breaker of the kernel or of its backend refuses it, or another call is trying it.
    bool IsOpen(const KernelEntry& kernel) const { return failures_ && health_.IsOpen(kernel, device_, now_); }
    // The number of the first row that holds for a call of the kernel, as far as holds(rows) says; -1: none.
    template <class Holds>
    int64_t QuarantinedBy(const KernelEntry& kernel, Holds&& holds) const {
      return First(kernel, false, holds);
    }
    // True if a row says that captures of such calls of the kernel were right here.
    template <class Holds>
    bool IsProvenInGraphs(const KernelEntry& kernel, Holds&& holds) const {
      return First(kernel, true, holds) >= 0;
    }

   private:
    template <class Holds>
    int64_t First(const KernelEntry& kernel, bool proof, Holds& holds) const {
      for (size_t i = 0; rows_ && i < rows_->size(); ++i) {
        const Resolved& r = (*rows_)[i];
        if ((health_.rows_[r.row].outcome == Outcome::kGraphSafe) != proof) continue;
        if (health_.RowHolds(r.row, kernel, device_) && holds(*r.rows)) return int64_t(r.row);
      }
      return -1;
    }

    Health& health_;
    std::unique_lock<std::mutex> lock_;
    const std::vector<Resolved>* rows_ = nullptr;
    int32_t device_;
    bool failures_;
    double now_;
  };
  // True if this call may run the selected kernel. `*trial`: it is the call that tries a kernel whose breaker is half
  // open, and the choice is for this call alone.
  bool MayRun(const KernelEntry& kernel, int32_t device, bool* trial);
  // Why the device serves this process no more; empty: it does.
  std::string LostBecause(int32_t device);
  // True if successes of this kernel have to be reported, and its first run to be marked.
  bool Watches(const KernelEntry& kernel, int32_t device);

  // ---- runs
  // Failed, wrong and lost runs count for breakers and the error budget. A failure after a write does not: no other
  // kernel may show whose fault it was.
  void Report(const Failure& failure);
  // The device serves this process no more, through no known kernel.
  void Lose(int32_t device, const std::string& why);
  // A watched run succeeded. False: it need not be watched any more.
  bool Passed(const KernelEntry& kernel, int32_t device);
  // A watched run begins; -1: it is not the kernel's first. Pass the result to Left.
  int Entered(const KernelEntry& kernel, int32_t device, const std::vector<CallCondition>& call);
  void Left(int mark) { markers_.Leave(mark); }

  // What a proof by capture and replay found for a class of calls of a kernel: kGraphSafe, or how it went wrong. Kept
  // with the quarantine, in place of an earlier verdict.
  void SetGraphVerdict(const KernelEntry& kernel, int32_t device, std::vector<CallCondition> call, Outcome outcome,
                       const std::string& detail);

  void CountShadow(bool wrong) { (wrong ? shadow_wrong_ : shadow_right_).fetch_add(1, std::memory_order_relaxed); }

  // ---- inspection
  // {"status": "ok" | "degraded" | "restart", "reasons": [...], "breakers": [...], "quarantine": [...], ...}
  nlohmann::json ToJson();
  std::string OpenText(const KernelEntry& kernel, int32_t device);
  std::string RowText(int64_t row);
  bool IsAboutCaptures(int64_t row);  // alone
  // Closes breakers and removes rows of the machine, of kernels that match (a glob; empty: all). Returns how many.
  size_t Reset(const std::string& kernel, Status* problem);
  // Half-open breakers are due: calls `changed` if there are any. Called by a timer.
  void Tick();
  // In a child after fork.
  void AfterFork();

 private:
  struct Entry {
    const KernelEntry* kernel = nullptr;
    int32_t device = 0;
    Breaker breaker;
    BreakerState seen = BreakerState::kClosed;  // when `changed` was called last
    std::array<uint64_t, size_t(Outcome::kCount)> counts = {};
    std::string last;   // the text of the last failure
    bool left = false;  // a run of it has ended
  };
  Entry& Of(const KernelEntry& kernel, int32_t device);
  Entry* Find(const KernelEntry& kernel, int32_t device);
  int OpenOf(const std::string& source, int32_t device, double now) const;
  bool IsOpen(const KernelEntry& kernel, int32_t device, double now);
  bool RowHolds(size_t row, const KernelEntry& kernel, int32_t device) const;
  void AddRow(QuarantineRow row);  // resolves its conditions for every operation that it names
  void Learn(QuarantineRow row);   // adds it, here and to the machine's file
  QuarantineRow RowOf(const KernelEntry& kernel, int32_t device, std::vector<CallCondition> call) const;
  void ReadMarks(const std::string& folder);
  bool IsInForce(const QuarantineRow& row) const;  // for some kernel of the process, until it ends
  int BudgetUsed(double now) const;
  void Changed();
  double Now() const { return clock_(); }

  Registry& registry_;
  const Devices devices_;
  const std::function<void()> changed_;
  std::function<double()> clock_;
  std::atomic<bool> quiet_{true}, begun_{false};
  std::atomic<uint64_t> shadow_right_{0}, shadow_wrong_{0};  // calls that were compared
  mutable std::mutex mutex_;
  HealthLimits limits_;
  std::map<std::pair<uint32_t, int32_t>, Entry> entries_;  // by index of the kernel, and device
  std::vector<QuarantineRow> rows_;                        // by number; those that are `removed_` are out
  std::vector<bool> removed_;
  std::map<const Operation*, std::vector<Resolved>> resolved_;
  std::map<int32_t, std::string> lost_;                            // device -> why
  std::array<std::pair<int64_t, int>, 60> failures_by_time_ = {};  // in steps of a sixtieth of kBudgetSeconds
  std::string problem_;                                            // with the files
  Markers markers_;
  Ticker ticker_;
  bool ticking_ = false;
};

}  // namespace lz
