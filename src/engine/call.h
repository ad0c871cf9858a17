// One call: bind, select, outputs and workspace, run; where a kernel fails, the next best one. The Python binding,
// torch's operators, programs and the C ABI all run it, each with a Caller that has what differs between them.
//
//   struct MyCaller : Caller { Status BindMemory(const KernelEntry&, const Transforms&, Request&); };
//   MyCaller caller;
//   Status status = RunCall(engine, request, &site, caller);
#pragma once

#include "engine/engine.h"
#include "pipeline/dispatch_observer.h"

namespace lz {

// A type that derives from it replaces functions by name: none is virtual, so a native kernel's call has no indirect
// call. An error that one returns ends the call.
struct Caller {
  const RunListener* listener = nullptr;

  Status LayoutGuessed(const Request&) { return {}; }
  // The cache of the call site does not have a plan for this request.
  Result<const Plan*> Select(Engine& engine, Request& r, InlineCache* site) {
    auto plan = site ? engine.Select(r, *site) : engine.Select(r);
    if (plan.ok() && listener) listener->selected(**plan, r);
    return plan;
  }
  // Sets what a native kernel writes: the outputs, and on devices other than the CPU its workspace. kOutOfMemory:
  // another kernel may need less.
  Status BindMemory(const KernelEntry&, const Transforms&, Request&) { return {}; }
  template <class Run>
  Status RunNative(const KernelEntry&, Request&, Run&& run) {
    return run();
  }
  // Runs a kernel of the host language, which has the outputs afterwards.
  Status RunHost(const KernelEntry& kernel, const Transforms&, Request&) { return HostKernelError(kernel); }
  // The plan's kernel failed with `why`, and another one has answered.
  void FellBack(const Plan& plan, const Plan& answered, const Request& r, const Status& why) {
    if (listener) listener->fell_back(plan, answered, r, why);
  }
  // The host language's error of a failed kernel, if it has one: kept while others run. It replaces one that was kept
  // before, unless `keep_first`.
  void KeepError(bool keep_first) { (void)keep_first; }
  void RestoreError() {}  // the kept one is the call's
};

inline bool IsHost(const KernelEntry& kernel) { return kernel.spec.call != CallKind::kNative; }

// Runs the plan's kernel, which is native and whose memory is bound, alone.
template <class C>
Status RunNativeKernel(Engine& engine, const Plan& plan, Request& r, C& caller) {
  return caller.RunNative(*plan.kernel, r, [&] { return engine.RunOnce(plan, r); });
}

// Runs the plan's kernel, which is a host kernel, alone.
template <class C>
Status RunHostKernel(Engine& engine, const Plan& plan, Request& r, C& caller) {
  plan.CountCall();
  return RunKernel(plan, *plan.kernel, r, [&] {
    Status status = caller.RunHost(*plan.kernel, plan.transforms, r);
    if (!status.ok() && engine.host()) r.outcome = OutcomeOf(*plan.kernel, r, status);
    return status;
  });
}

template <class C>
Status RunKernelOf(Engine& engine, const Plan& plan, Request& r, C& caller) {
  if (IsHost(*plan.kernel)) return RunHostKernel(engine, plan, r, caller);
  if (Status bound = caller.BindMemory(*plan.kernel, plan.transforms, r); !bound.ok()) {
    if (bound.code() == StatusCode::kOutOfMemory) r.outcome = Outcome::kOutOfMemory;
    return bound;
  }
  return RunNativeKernel(engine, plan, r, caller);
}

// The rest of a call whose kernel has failed with `first`: the next best kernels run, one after another, as long as
// nothing forbids it.
template <class C>
Status RunOthers(Engine& engine, const Plan& plan, Request& r, C& caller, Status first) {
  Selector::Failures failures;
  const Plan* next = engine.Next(plan, r, first, &failures);
  if (!next) return first;
  caller.KeepError(false);
  while (next) {
    Status status = RunKernelOf(engine, *next, r, caller);
    if (status.ok()) {
      engine.Count(failures);
      caller.FellBack(plan, *next, r, first);
      return {};
    }
    const StatusCode of_first = first.code();
    next = engine.Next(*next, r, status, &failures);
    first = FirstOrLast(std::move(first), std::move(status));
    caller.KeepError(first.code() == of_first);
  }
  caller.RestoreError();
  return first;
}

// Runs a selected plan.
template <class C>
Status RunPlan(Engine& engine, const Plan& plan, Request& r, C& caller) {
  r.fell_back = false;
  Status status = RunKernelOf(engine, plan, r, caller);
  if (status.ok()) [[likely]]
    return status;
  return RunOthers(engine, plan, r, caller, std::move(status));
}

// The whole call of a request whose tensors and scalars are set. `site`: nullptr if the caller has none.
template <class C>
Status RunCall(Engine& engine, Request& r, InlineCache* site, C& caller) {
  LZ_RETURN_IF_ERROR(engine.Bind(r));
  if (r.layout_guessed) [[unlikely]]
    LZ_RETURN_IF_ERROR(caller.LayoutGuessed(r));
  const Plan* plan = site && r.capture == 0 ? engine.Lookup(*site, r.facts) : nullptr;
  if (!plan) [[unlikely]] {
    auto selected = caller.Select(engine, r, site);
    if (!selected.ok()) return selected.TakeStatus();
    plan = *selected;
  }
  return RunPlan(engine, *plan, r, caller);
}

}  // namespace lz
