// Measured records as selection asks for them: a kernel's time at the measured call that is nearest to this one.
//
// Each axis is cut into cells halfway (geometrically) between the values that were measured, and a call stands for the
// values of its cells. So all calls of one class have the same nearest measured call, and a cached plan holds for its
// class. Calls more than kReach beyond every measured value have no time.
//
// Only records of today's protocol and of this version of the kernel count. A call that was measured with its data in
// the caches (warm) and out of them (cold) has its cold times: a model finds its weights and its KV rows in memory.
//
// What a call says beside its axes (a format, causal, a bias) tells calls apart where it was measured: of the records
// whose options a call has all, those with the most answer.
//   Prior prior(registry, records, DeviceId(cpu));
//   LZ_RETURN_IF_ERROR(prior.Watch(registry));        // from here on classes are cut
//   auto time = prior.Find(kernel, DType::kF32, request.axes(), OptionsOf(request));
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "perfdb/record.h"
#include "registry/registry.h"

namespace lz::perfdb {

// The time of a kernel at a call: `noise` is the relative half width of the interval of the median, more where the
// measured call is a neighbour; `confidence` 1 for a measured neighbourhood on this machine, less far away or where the
// machine has another number of cores. `other_version`: of another version of the library whose kernel it is, so that
// no time that was taken in turns with it decides.
struct PriorTime {
  double median_us, noise, confidence;
  bool other_version = false;
};

// Whether times of two versions of a library can be compared: releases that differ in the third number or in what the
// build was for ("2.13.0+cpu", "2.13.1"), no others; what is no release ("2.14.0.dev20260131", a file) is itself alone.
bool IsSameVersion(std::string_view a, std::string_view b);

class Prior {
 public:
  static constexpr int64_t kReach = 4;                 // times the outermost measured value of an axis
  using Options = std::map<std::string, std::string>;  // as records have them

  // Takes the valid records of eager calls that were measured on devices of this type; the others are for the database.
  // Of two groups the first that has an operation has it alone: the user's before those that the library carries.
  Prior(const Registry& registry, std::span<const std::vector<Record>> groups, std::string_view device_id);

  // Cuts the classes of every operation that was measured, and of no other by records that were in force before.
  Status Watch(Registry& registry) const;
  std::optional<PriorTime> Find(const KernelEntry& kernel, DType dtype, const int64_t* axes,
                                const Options& options) const;
  // Each call that was measured: median microseconds by kernel id.
  struct MeasuredCall {
    std::string operation;
    std::map<std::string, double> us;
  };
  std::vector<MeasuredCall> MeasuredCalls() const;
  size_t num_records() const { return num_records_; }

 private:
  struct Time {
    PriorTime time;
    std::string version;  // of the library; empty: not of one, or not known
  };
  struct Call {
    std::vector<double> at;                               // log2 of the axes
    std::map<std::string, Time, std::less<>> cold, warm;  // by kernel and version
  };
  struct Axis {
    std::vector<int64_t> values;  // ascending
    std::vector<int64_t> cuts;    // cell i: from cuts[i] to below cuts[i + 1]; outside: not measured
    void Cut();                   // values as they were measured -> both
  };
  using Key = std::pair<std::string, DType>;  // operation id, of the first tensor
  // Calls by their options, the most options first.
  using CallsByOptions = std::vector<std::pair<Options, std::vector<Call>>>;

  void Take(const Registry& registry, const Record& record, double confidence);
  std::vector<Call>& CallsOf(const Record& record, DType dtype);
  static std::optional<PriorTime> TimeAt(const Call& call, const KernelEntry& kernel, double distance);

  std::map<Key, CallsByOptions> calls_;
  std::map<const Operation*, std::vector<Axis>> axes_;
  std::map<const Operation*, std::vector<Constraint>> options_;  // that some record has: what classes are cut by
  size_t num_records_ = 0;
};

}  // namespace lz::perfdb
