// Calls that a process makes while it serves: how often each class occurs (`layerzero record`), and times of a share of
// them (the policy's perfdb.sample_rate), which go to the performance database.
//
// A sampled call on a CPU is timed by the clock around its kernel. One on a GPU is timed between two events, which a
// thread of its own queries later: no call ever waits for the device. Captured calls are counted and not timed. While
// neither is on there is no observer, and calls pay nothing.
//
// Times of serving were not taken in turns with other kernels', so their protocol is kServedProtocol and they decide
// nothing: they say how far serving is from the times of tuning.
#pragma once

#include <cstdint>
#include <string>

#include "base/export.h"

namespace lz {

inline constexpr int64_t kServedProtocol = 2;

// `rate`: the fraction of calls that are timed; `least`: the samples that one record has.
void SampleServedCalls(double rate, int64_t least);
// Begins to count classes of calls, from zero, or stops.
LZ_OWN void RecordServedCalls(bool on);
// The classes so far, as JSON: {"calls": [{"operation", "name", "line", "device", "execution", "dtype", "axes",
// "options", "count", "kernels": {id: count}}], "left_out": calls of further classes, "sampled": calls that were timed,
// "queued": records made of them}. `line` is the call in the grammar of bench cases, without contents.
LZ_OWN std::string ServedCallsText();
// Waits up to `seconds` for the events of the last samples on GPUs and makes records of what is enough for one.
LZ_OWN void FlushServedCalls(double seconds);

}  // namespace lz
