#include "pipeline/selector_captures.h"

#include <algorithm>
#include <cstring>

namespace lz {
namespace {

// Without the numbers of classes, which change with what is learned.
Facts CallOf(const Request& r) {
  Facts call = r.facts;
  for (const size_t slot : {kSlotGeneration, kSlotPredicates0, kSlotPredicates1}) call.v[slot] = 0;
  return call;
}

template <class Captures>
auto* Of(Captures& captures, uint32_t id) {
  const auto at = std::ranges::find_if(captures, [&](const auto& c) { return c.id == id; });
  return at == captures.end() ? nullptr : &*at;
}

}  // namespace

CaptureChoices& CaptureChoices::Get() {
  static CaptureChoices& choices = *new CaptureChoices;
  return choices;
}

const Plan* CaptureChoices::Find(const Request& r) const {
  const Facts call = CallOf(r);
  std::lock_guard lock(mutex_);
  const Capture* const capture = Of(captures_, r.capture);
  if (!capture) return nullptr;
  const auto at = std::ranges::find_if(capture->choices, [&](const Choice& c) {
    return c.op == r.op && std::memcmp(c.call.v, call.v, sizeof(call.v)) == 0;
  });
  return at == capture->choices.end() ? nullptr : at->plan;
}

void CaptureChoices::Keep(const Request& r, const Plan& plan) {
  const Facts call = CallOf(r);
  std::lock_guard lock(mutex_);
  Capture* capture = Of(captures_, r.capture);
  if (!capture) {
    if (captures_.size() == kMostCaptures) captures_.pop_front();
    capture = &captures_.emplace_back(Capture{r.capture, {}});
  }
  capture->choices.push_back({r.op, call, &plan});
}

void CaptureChoices::Forget(const Request& r, const KernelEntry& kernel) {
  std::lock_guard lock(mutex_);
  if (Capture* const capture = Of(captures_, r.capture)) {
    std::erase_if(capture->choices, [&](const Choice& c) { return c.plan->kernel == &kernel; });
  }
}

}  // namespace lz
