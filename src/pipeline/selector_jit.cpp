// Kernels that are compiled at their first call of a kind: which one a call would get if it were ready.
#include <algorithm>

#include "pipeline/selector.h"

namespace lz {

const KernelEntry* Selector::WantedIfCompiled(Request& r, const Policy& policy, const Without& without,
                                              const SelectionReport& report) {
  if (std::ranges::none_of(report.candidates, LacksCompilationAlone)) return nullptr;
  std::vector<Candidate> ready = report.candidates;
  for (Candidate& c : ready) {
    if (LacksCompilationAlone(c)) c.reasons.clear();
    c.terms.clear();  // of the report's own score
    c.score = 0;
  }
  int best = -1;
  if (report.lock.empty()) {
    best = Best(r, policy, without, &ready);
  } else {
    const auto locked = [&](const Candidate& c) { return c.kernel->id == report.lock && c.admissible(); };
    const auto at = std::ranges::find_if(ready, locked);
    if (at != ready.end()) best = int(at - ready.begin());
  }
  return best >= 0 && LacksCompilationAlone(report.candidates[size_t(best)]) ? ready[size_t(best)].kernel : nullptr;
}

}  // namespace lz
