// The hook around every kernel that runs, native or of the host language, whichever binding the call comes from. Debug
// mode and every Observer use it. A call that nobody observes costs one load.
//
//   struct Counter : Observer { void Ended(const KernelRun& run, const Status&, double) override { ... } };
//   AddObserver(counter);  ...  RemoveObserver(counter.get());
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "base/reclaimer.h"
#include "core/status.h"
#include "pipeline/plan.h"
#include "pipeline/request.h"

namespace lz {

// One run of one kernel.
struct KernelRun {
  const KernelEntry& kernel;  // the plan's, or its fallback
  const Request& request;
  bool fallback;  // another kernel of this call failed before
  bool missed;    // no cache had a plan for this call
};

// One selection that no cache served, after it. `report.winner` < 0: no kernel may run. The request's outputs have
// shapes and no memory.
struct SelectionReport;
struct KernelSelection {
  const Request& request;
  const SelectionReport& report;
  double seconds;  // of filter, score and plan
};

class Observer {
 public:
  virtual ~Observer() = default;
  // Before each run, on the thread that calls the kernel; Ended follows on the same thread.
  virtual void Began(const KernelRun&) {}
  // After a run that succeeded, before Ended. An error: its result is wrong, and another kernel has to answer.
  virtual Status Check(const KernelRun&) { return {}; }
  // After each run, on the thread that called the kernel. `seconds`: wall time of the run, transforms included.
  virtual void Ended(const KernelRun& run, const Status& status, double seconds) = 0;
  // True: the call waits for its CUDA stream before and after the kernel, so that `seconds` and errors are the kernel's
  // own. Not while a graph is captured.
  virtual bool waits() const { return false; }
  // True: the steps of a program run on the thread that runs the program, which costs them its team of threads.
  virtual bool on_callers_thread() const { return false; }
  // After each selection, on the thread that selected; no lock of the engine is held. It must not call operations.
  virtual void Selected(const KernelSelection&) {}
  // False: runs are not reported, so that hits cost nothing.
  virtual bool of_runs() const { return true; }
};
using ObserverList = std::vector<std::shared_ptr<Observer>>;
// Observers of all calls of the process. A run that began before RemoveObserver may still be reported after it.
LZ_OWN void AddObserver(std::shared_ptr<Observer> observer);
LZ_OWN void RemoveObserver(const Observer* observer);

void ReportSelection(const KernelSelection& selection);
bool AnySelectionObserver();  // false: a selection need not be prepared for one
// True if the steps of programs have to run on the caller's thread.
LZ_OWN bool ObservedOnCallersThread();

// The number of observers of runs. Not exported, so that dispatch reads it with one load.
extern std::atomic<int> num_observers;
// True if a run of the plan's kernels has to be reported or checked.
LZ_OWN bool IsObserved(const Plan& plan);
// CudaStreamError; tests replace it.
extern std::string (*stream_error)(void* stream);

// A run that is observed, or checked in debug mode: construct it before the run, call End afterwards.
class LZ_OWN ObservedRun {
 public:
  ObservedRun(const Plan& plan, const KernelEntry& kernel, Request& request);
  // The error of work that was on the stream before: the kernel must not run.
  Status TakeEarlierError() { return std::move(earlier_); }
  // Reports the run. Returns `status`, or the error that the device reports after a run that seemed to succeed.
  Status End(Status status);

 private:
  Status Wait(bool before) const;
  void Report(const Status& status);

  const Plan& plan_;
  Request& request_;
  int mark_ = -1;  // of health

  Reclaimer::Guard guard_;  // of observers_
  KernelRun run_;
  const ObserverList* observers_;
  bool waits_;
  Status earlier_;
  std::chrono::steady_clock::time_point start_;
};

// Calls run(), which runs `kernel` of the plan and returns its status. An error that is found before or after it is
// returned in its place; run() is not called after one that was found before.
template <class Run>
Status RunKernel(const Plan& plan, const KernelEntry& kernel, Request& r, Run&& run) {
  if (!IsObserved(plan)) [[likely]]
    return run();
  ObservedRun observed(plan, kernel, r);
  if (Status earlier = observed.TakeEarlierError(); !earlier.ok()) return earlier;
  return observed.End(run());
}

}  // namespace lz
