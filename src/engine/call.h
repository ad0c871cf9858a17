// One call: bind, select, outputs and workspace, run, fallback. The Python binding, torch's operators, programs and the
// C ABI all run it, each with a Caller that has what differs between them.
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
  // Sets what a native kernel writes: the outputs, and on devices other than the CPU its workspace.
  Status BindMemory(const KernelEntry&, const Transforms&, Request&) { return {}; }
  template <class Run>
  Status RunNative(const KernelEntry&, Request&, Run&& run) {
    return run();
  }
  // True if BindMemory failed because memory was short.
  bool LacksMemory() { return false; }
  // Runs a kernel of the host language, which has the outputs afterwards.
  Status RunHost(const KernelEntry& kernel, const Transforms&, Request&) { return HostKernelError(kernel); }
  // The plan's kernel failed and its fallback has answered.
  void FellBack(const Plan& plan, const Request& r) {
    if (listener) listener->fell_back(plan, r);
  }
  // The host language's error of a failed kernel: kept while the fallback runs, restored if it is the call's.
  void KeepError() {}
  void RestoreError() {}
};

inline bool IsHost(const KernelEntry& kernel) { return kernel.spec.call != CallKind::kNative; }

// The status of a call whose kernel or fallback ran.
template <class C>
Status Answered(const Plan& plan, Request& r, C& caller, Status status) {
  if (r.fell_back && status.ok()) [[unlikely]]
    caller.FellBack(plan, r);
  return status;
}

// Runs a plan whose kernel is native and whose memory is bound. If the kernel failed and its fallback is a host kernel,
// which RunHostKernel has to run, fell_back is set and the status is kHostKernel.
template <class C>
Status RunNativeKernel(Engine& engine, const Plan& plan, Request& r, C& caller) {
  return Answered(plan, r, caller, caller.RunNative(*plan.kernel, r, [&] { return engine.Run(plan, r); }));
}

template <class C>
Status RunHostFallback(const Plan& plan, Request& r, C& caller) {
  return RunKernel(plan, *plan.fallback, r,
                   [&] { return caller.RunHost(*plan.fallback, plan.fallback_transforms, r); });
}

template <class C>
Status RunFallback(Engine& engine, const Plan& plan, Request& r, C& caller) {
  r.fell_back = true;
  if (IsHost(*plan.fallback)) {
    engine.CountFallback();
    return RunHostFallback(plan, r, caller);
  }
  LZ_RETURN_IF_ERROR(caller.BindMemory(*plan.fallback, plan.fallback_transforms, r));
  return caller.RunNative(*plan.fallback, r, [&] { return engine.RunFallback(plan, r); });
}

// Runs a plan whose kernel is a host kernel, or, with fell_back set, its fallback, which is one.
template <class C>
Status RunHostKernel(Engine& engine, const Plan& plan, Request& r, C& caller) {
  if (r.fell_back) return Answered(plan, r, caller, RunHostFallback(plan, r, caller));
  plan.CountCall();
  bool failed = false;  // by itself: an error that debug mode finds is not hidden by a fallback
  Status status = RunKernel(plan, *plan.kernel, r, [&] {
    Status own = caller.RunHost(*plan.kernel, plan.transforms, r);
    failed = !own.ok();
    return own;
  });
  if (!failed || !engine.host() || !MayFallBack(plan, r, status)) return status;
  caller.KeepError();
  Status answered = RunFallback(engine, plan, r, caller);
  if (FallbackDecides(status, answered)) return Answered(plan, r, caller, std::move(answered));
  caller.RestoreError();
  return status;
}

// Runs a plan whose kernel is native and whose memory is bound, and its fallback if that is needed.
template <class C>
Status RunBound(Engine& engine, const Plan& plan, Request& r, C& caller) {
  Status status = RunNativeKernel(engine, plan, r, caller);
  if (status.code() == StatusCode::kHostKernel && r.fell_back) [[unlikely]]
    return RunHostKernel(engine, plan, r, caller);
  return status;
}

// The memory of a plan's kernel could not be allocated: runs another kernel that needs less. `status`: the error if
// there is none.
template <class C>
Status RunWithLess(Engine& engine, const Plan& plan, Request& r, C& caller, Status status) {
  caller.KeepError();
  auto other = engine.SelectWithLess(r);
  if (!other.ok() || (*other)->kernel == plan.kernel) {
    caller.RestoreError();
    return status;
  }
  if (IsHost(*(*other)->kernel)) return RunHostKernel(engine, **other, r, caller);
  LZ_RETURN_IF_ERROR(caller.BindMemory(*(*other)->kernel, (*other)->transforms, r));
  return RunBound(engine, **other, r, caller);
}

// Runs a selected plan.
template <class C>
Status RunPlan(Engine& engine, const Plan& plan, Request& r, C& caller) {
  r.fell_back = false;
  if (IsHost(*plan.kernel)) return RunHostKernel(engine, plan, r, caller);
  if (Status bound = caller.BindMemory(*plan.kernel, plan.transforms, r); !bound.ok()) [[unlikely]] {
    if (!caller.LacksMemory()) return bound;
    return RunWithLess(engine, plan, r, caller, std::move(bound));
  }
  return RunBound(engine, plan, r, caller);
}

// The whole call of a request whose tensors and scalars are set. `site`: nullptr if the caller has none.
template <class C>
Status RunCall(Engine& engine, Request& r, InlineCache* site, C& caller) {
  LZ_RETURN_IF_ERROR(engine.Bind(r));
  if (r.layout_guessed) [[unlikely]]
    LZ_RETURN_IF_ERROR(caller.LayoutGuessed(r));
  const Plan* plan = site ? engine.Lookup(*site, r.facts) : nullptr;
  if (!plan) [[unlikely]] {
    auto selected = caller.Select(engine, r, site);
    if (!selected.ok()) return selected.TakeStatus();
    plan = *selected;
  }
  return RunPlan(engine, *plan, r, caller);
}

}  // namespace lz
