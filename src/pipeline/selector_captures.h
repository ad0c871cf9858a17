// The choices of calls inside CUDA graph captures: what a call has got holds until the capture ends, whatever is
// learned, measured or configured meanwhile, because the graph's other calls are recorded already.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "pipeline/plan.h"
#include "pipeline/request.h"

namespace lz {

// Any thread may call it.
class CaptureChoices {
 public:
  static CaptureChoices& Get();               // those of the process, as the numbers of captures are the driver's
  static constexpr size_t kMostCaptures = 8;  // at once; the oldest is forgotten

  // The plan of an equal call of the request's capture; nullptr: there was none.
  const Plan* Find(const Request& request) const;
  void Keep(const Request& request, const Plan& plan);
  // The kernel failed in the request's capture: its calls choose again.
  void Forget(const Request& request, const KernelEntry& kernel);

 private:
  struct Choice {
    const Operation* op;
    Facts call;
    const Plan* plan;
  };
  struct Capture {
    uint32_t id;
    std::vector<Choice> choices;
  };
  mutable std::mutex mutex_;
  std::deque<Capture> captures_;
};

}  // namespace lz
