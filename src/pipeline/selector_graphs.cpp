// Selection inside CUDA graph captures.
#include <algorithm>

#include "pipeline/filter_health.h"
#include "pipeline/selector.h"
#include "pipeline/selector_captures.h"

namespace lz {

Result<const Plan*> Selector::SelectInCapture(Request& r) {
  const Reclaimer::Guard guard;
  KeepCurrent(r);
  CaptureChoices& choices = CaptureChoices::Get();
  const Plan* const fixed = choices.Find(r);
  if (fixed && !registry_.IsRemoved(*fixed->kernel)) return fixed;
  if (fixed) choices.Forget(r, *fixed->kernel);
  Missed missed;
  const Plan* plan = Lookup(r, &missed);
  if (!plan) {
    if (before_selecting_) before_selecting_(r);
    bool keep;
    auto selected = SelectProven(r, missed, &keep);
    if (!selected.ok()) return selected;
    plan = *selected;
  }
  choices.Keep(r, *plan);
  return plan;
}

// Why the capture excludes a kernel; empty: something else does too.
std::string Selector::UnsafeBecause(const Candidate& c) {
  std::string why;
  for (const Reason& reason : c.reasons) {
    if (reason.code == ReasonCode::kQuarantined && health_.IsAboutCaptures(reason.wanted)) {
      why = health_.RowText(reason.wanted);
    } else if (reason.code != ReasonCode::kCudaGraphUnsafe) {
      return "";
    } else if (why.empty()) {
      why = reason.row == kNoRow             ? "not proven on this device"
            : SaysNothingOfGraphs(*c.kernel) ? "not declared safe"
                                             : "declared unsafe";
    }
  }
  return why;
}

std::string Selector::UnsafeInGraphs(const SelectionReport& report) {
  std::string kernels;
  for (const Candidate& c : report.candidates) {
    if (c.admissible() || (!report.lock.empty() && c.kernel->id != report.lock)) continue;
    const std::string why = UnsafeBecause(c);
    if (!why.empty()) kernels += (kernels.empty() ? "" : ", ") + c.kernel->id + " (" + why + ")";
  }
  return kernels;
}

}  // namespace lz
