// Measured records as selection uses them: a kernel's time at the measured call that is nearest to this one.
//
// Each axis is divided into cells halfway (geometrically) between the measured values, and a call represents the values
// of its cells. So all calls of one class have the same nearest measured call, and a cached plan holds for its class.
// Calls more than kReach beyond every measured value have no time.
//
// Only records of the current protocol and of this version of the kernel count. A call that was measured with its
// data in the caches (warm) and outside them (cold) has its cold times, because a model reads its weights and KV rows
// from memory.
//
// A call inside a CUDA graph capture has the times of graphs, every other call those of eager calls: a graph leaves out
// the host, so it has other winners. Sizes of a cache's pool ("blocks", "pages") separate no calls: a kernel reads the
// pages that its table names.
//
// The options of a call besides its axes (a format, causal, a bias) separate calls where they were measured: among the
// records whose options are all options of the call, those with the most are used.
//   Prior prior(registry, records, DeviceId(cpu), 0);
//   LZ_RETURN_IF_ERROR(prior.AddThresholds(registry));        // from now on classes are split
//   auto time = prior.Find(kernel, DType::kF32, request.axes(), OptionsOf(request));
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "perfdb/record.h"
#include "registry/registry.h"

namespace lz::perfdb {

// The time of a kernel at a call. `noise`: relative half width of the interval of the median, larger if the measured
// call is a neighbor. `confidence`: 1 if the neighborhood was measured on this device, less if it is far away, the
// machine has another number of cores, or the device is another GPU of the same generation. `other_version`: measured
// with another version of the kernel's library, so that no time that was taken in turns with it decides.
struct PriorTime {
  double median_us, noise, confidence;
  bool other_version = false;
};

// True if times of two versions of a library can be compared: releases that differ only in the third number or in the
// build ("2.13.0+cpu", "2.13.1"), not in "+prebuilt.<hash>". What is no release ("2.14.0.dev1") equals only itself.
bool IsSameVersion(std::string_view a, std::string_view b);

// The version of the library of a record's kernel; empty: it has none. Torch's kernels have the version of the torch
// that measured, which older records have only in its own column.
std::string LibraryVersionOf(const Record& record);

class Prior {
 public:
  static constexpr int64_t kReach = 4;                 // times the outermost measured value of an axis
  using Options = std::map<std::string, std::string>;  // as in records

  // Uses the valid records that were measured on devices of this type; the others are for the database. `sm`: the
  // compute capability of a GPU (90), 0 for a CPU, which has no graphs. The first group that has an operation is the
  // only one used for it: the user's records come before those of the library; and within a group those of this device
  // before those of one similar device, whose times are multiplied by what the same calls take here, relative to there.
  Prior(const Registry& registry, std::span<const std::vector<Record>> groups, std::string_view device_id,
        int64_t sm = 0);

  // Splits the classes of every operation that one of `priors` measured, and takes back all earlier splits.
  static Status SplitClasses(Registry& registry, std::span<const Prior* const> priors);
  Status AddThresholds(Registry& registry) const;  // of this one alone
  // `in_graph`: the call is being captured.
  std::optional<PriorTime> Find(const KernelEntry& kernel, DType dtype, const int64_t* axes, const Options& options,
                                bool in_graph = false) const;
  // Each eager call that was measured: median microseconds by kernel id.
  struct MeasuredCall {
    std::string operation;
    std::map<std::string, double> us;
  };
  std::vector<MeasuredCall> MeasuredCalls() const;
  size_t num_records() const { return num_records_; }

 private:
  struct Time {
    PriorTime time;
    std::string version;  // version of the library; empty: none or unknown
  };
  struct Call {
    std::vector<double> at;                               // log2 of the axes
    std::map<std::string, Time, std::less<>> cold, warm;  // by kernel and version
  };
  struct Axis {
    std::vector<int64_t> values;  // ascending
    std::vector<int64_t> cuts;    // cell i: cuts[i] up to but excluding cuts[i + 1]; outside: not measured
    bool decides = true;          // false: the size of a pool
    void Cut();                   // fills both from the values as they were measured
  };
  using Key = std::tuple<std::string, DType, bool>;  // operation id, dtype of the first tensor, whether in a graph
  // Calls by their options, those with the most options first.
  using CallsByOptions = std::vector<std::pair<Options, std::vector<Call>>>;

  // factor: what the same calls take here, relative to where the record was measured.
  void Take(const Registry& registry, const Record& record, double confidence, double factor);
  std::vector<Call>& CallsOf(const Record& record, DType dtype);
  static std::optional<PriorTime> TimeAt(const Call& call, const KernelEntry& kernel, double distance);

  std::map<Key, CallsByOptions> calls_;
  std::map<const Operation*, std::vector<Axis>> axes_;
  std::map<const Operation*, std::vector<Constraint>> options_;  // options of some record, by which classes are split
  bool has_graphs_ = false;                                      // the device can capture
  size_t num_records_ = 0;
};

}  // namespace lz::perfdb
