#include "pipeline/dispatch_observer.h"

#include <algorithm>
#include <mutex>

#include "health/health.h"
#include "pipeline/dispatch.h"
#include "pipeline/filter_health.h"
#include "platform/cuda_driver.h"

namespace lz {
namespace {

constexpr int32_t kDeviceCuda = 2;  // lz_device.type

// The list is replaced as a whole: a run keeps the one that it began with, by a Reclaimer::Guard and without a lock.
struct Registered {
  std::mutex mutex;  // of changes
  std::atomic<const ObserverList*> list{new ObserverList};

  const ObserverList* Get() const { return list.load(std::memory_order_acquire); }
  template <class Change>
  void Replace(Change&& change) {
    const ObserverList* before;
    {
      std::lock_guard lock(mutex);
      before = list.load(std::memory_order_relaxed);
      auto changed = std::make_unique<ObserverList>(*before);
      change(*changed);
      num_observers.store(int(std::ranges::count_if(*changed, &Observer::of_runs, &Of)), std::memory_order_relaxed);
      list.store(changed.release(), std::memory_order_release);
    }
    // After the lock: an observer may belong to the host language.
    Reclaimer::Get().Retire([before] { delete before; });
  }
  static const Observer& Of(const std::shared_ptr<Observer>& observer) { return *observer; }
};
Registered& Observers() {
  static auto& registered = *new Registered;
  return registered;
}

}  // namespace

std::atomic<int> num_observers{0};
bool IsObserved(const Plan& plan) {
  return plan.checked || plan.is_watched() || num_observers.load(std::memory_order_relaxed) != 0;
}

std::string (*stream_error)(void* stream) = &CudaStreamError;

void AddObserver(std::shared_ptr<Observer> observer) {
  Observers().Replace([&](ObserverList& list) { list.push_back(std::move(observer)); });
}
void RemoveObserver(const Observer* observer) {
  Observers().Replace([&](ObserverList& list) {
    std::erase_if(list, [&](const std::shared_ptr<Observer>& o) { return o.get() == observer; });
  });
}

void ReportSelection(const KernelSelection& selection) {
  const Reclaimer::Guard guard;
  for (const auto& observer : *Observers().Get()) observer->Selected(selection);
}
bool AnySelectionObserver() {
  const Reclaimer::Guard guard;
  return !Observers().Get()->empty();
}
bool ObservedOnCallersThread() {
  if (num_observers.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  const Reclaimer::Guard guard;
  return std::ranges::any_of(*Observers().Get(), [](const auto& o) { return o->on_callers_thread(); });
}

ObservedRun::ObservedRun(const Plan& plan, const KernelEntry& kernel, Request& request)
    : plan_(plan),
      request_(request),
      run_{kernel, request, request.fell_back, std::exchange(request.missed, false)},
      observers_(Observers().Get()) {
  const bool asked = std::ranges::any_of(*observers_, [](const auto& o) { return o->waits(); });
  const bool capturing = (request.flags & LZ_FLAG_CAPTURING) != 0;
  waits_ = (plan.checked || asked) && request.where.type == kDeviceCuda && !capturing;
  if (waits_) earlier_ = Wait(true);
  if (!earlier_.ok()) return;
  for (const auto& observer : *observers_) {
    if (observer->of_runs()) observer->Began(run_);
  }
  if (plan.health && plan.is_watched()) mark_ = MarkRun(*plan.health, kernel, request);
  start_ = std::chrono::steady_clock::now();
}

Status ObservedRun::End(Status status) {
  if (waits_ && status.ok()) status = Wait(false);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
  for (const auto& observer : *observers_) {
    if (!status.ok()) break;
    status = observer->Check(run_);
    if (!status.ok()) request_.outcome = Outcome::kWrong;
  }
  Report(status);
  for (const auto& observer : *observers_) {
    if (observer->of_runs()) observer->Ended(run_, status, took.count());
  }
  return status;
}

// Failures are reported where the next kernel is chosen.
void ObservedRun::Report(const Status& status) {
  if (!plan_.health) return;
  plan_.health->Left(mark_);
  if (plan_.is_watched() && status.ok()) plan_.Watch(plan_.health->Passed(run_.kernel, request_.device));
}

Status ObservedRun::Wait(bool before) const {
  const Request& r = run_.request;
  const CudaDeviceGuard guard(r.where.id);
  const std::string error = stream_error(r.stream);
  if (error.empty()) return {};
  const std::string name = std::string(r.op->name()) + ": kernel " + run_.kernel.id;
  const bool lost = IsLostContext("CUDA error: " + error);
  const StatusCode code = lost ? StatusCode::kContextLost : StatusCode::kKernelFailed;
  if (before) {
    if (lost && plan_.health) plan_.health->Lose(r.device, error);
    return Status(code,
                  {.field = name,
                   .wanted = "a stream without errors before it",
                   .got = error,
                   .fix = "work that was on the stream before this kernel is at fault: another library's, if every "
                          "call of LayerZero's ran with debug: true; start the process again"});
  }
  if (lost) request_.outcome = Outcome::kContextLost;
  return WithWrittenInputs(
      run_.kernel, r,
      Status(code, {.field = name,
                    .wanted = "no error of its device",
                    .got = error,
                    .fix = "start the process again, deny or unlock the kernel and report it; found "
                           "because the call waited for the device"}));
}

}  // namespace lz
