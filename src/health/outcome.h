// What came of one run of one kernel, as data.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/export.h"

namespace lz {

enum class Outcome : uint8_t {
  kDone,
  kRefused,           // by the kernel itself, which has written nothing
  kFailed,            // its inputs are as they were: another kernel may run
  kFailedAfterWrite,  // an input may be partly written: no other kernel may read it
  kOutOfMemory,
  kContextLost,  // the device serves this process no more
  kWrong,        // its result differs from the reference by more than the operation's tolerance
  kCrashed,      // it was running when an earlier process ended
  kGraphSafe,    // no failure: its replays in a CUDA graph were compared and right
  kCount
};
inline constexpr std::array<std::string_view, size_t(Outcome::kCount)> kOutcomeNames = {
    "done",  "refused", "failed_before_write", "failed_after_write", "out_of_memory", "context_lost",
    "wrong", "crashed", "graph_safe"};
Outcome OutcomeFromName(std::string_view name);  // kDone if the name is unknown

// Errors of CUDA after which every later call of the process on that device fails too.
bool IsLostContext(int cuda_error);
LZ_OWN bool IsLostContext(std::string_view message);  // of the runtime or of torch
inline constexpr int kCudaOutOfMemory = 2;

}  // namespace lz
