// The columns of a measured record: one list that the JSON reader and writer, the keys and the database's table are
// made of.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "perfdb/record.h"

namespace lz::perfdb {

inline constexpr size_t kMaxText = 256, kMaxNames = 32;
inline constexpr int64_t kMaxNumber = int64_t{1} << 53;  // every JSON reader keeps such integers exactly

// What a column is in the key of a row of the database. A file of records has one row for each identity; the database
// has one for each identity, kernel build and run, so that measurements of two drivers do not replace each other.
enum class Role : uint8_t {
  kValue,     // not in the key
  kIdentity,  // what was measured
  kKernel,    // the build of the kernel
  kRun,       // how, where and in which environment: the same for all kernels that were compared with each other
};

// Limits of a column besides its C++ type.
struct Limits {
  Role role = Role::kValue;
  bool optional = false;          // the key may be missing
  std::string_view choices = {};  // "warm|cold"
  bool (*fits)(const std::string&) = nullptr;
  std::string_view form = {};  // the form that fits() checks
  double least = 0;
};

inline bool IsChoice(std::string_view choices, std::string_view value) {
  for (bool more = true; more;) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == value) return true;
    more = bar != choices.npos;
    if (more) choices.remove_prefix(bar + 1);
  }
  return false;
}

inline bool IsDType(const std::string& s) {
  return DTypeFromName(s) != DType::kUnknown && Info(DTypeFromName(s)).name == s;
}
inline bool IsHash(const std::string& s) {
  return s.size() == 64 &&
         std::ranges::all_of(s, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
inline bool IsTime(const std::string& s) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00Z";
  if (s.size() != kForm.size()) return false;
  for (size_t i = 0; i < s.size(); ++i) {
    if (kForm[i] == '0' ? s[i] < '0' || s[i] > '9' : s[i] != kForm[i]) return false;
  }
  const auto part = [&](size_t at) { return (s[at] - '0') * 10 + s[at + 1] - '0'; };
  return part(5) >= 1 && part(5) <= 12 && part(8) >= 1 && part(8) <= 31 && part(11) < 24 && part(14) < 60 &&
         part(17) <= 60;
}

inline constexpr Limits kKey = {.role = Role::kIdentity};
inline constexpr Limits kKnown = {.optional = true};
inline constexpr Limits kIdentityKnown = {.role = Role::kIdentity, .optional = true};
inline constexpr Limits kKernel = {.role = Role::kKernel};
inline constexpr Limits kKernelKnown = {.role = Role::kKernel, .optional = true};
inline constexpr Limits kRunKnown = {.role = Role::kRun, .optional = true};
constexpr Limits RunChoice(std::string_view choices, bool optional) {
  return {.role = Role::kRun, .optional = optional, .choices = choices};
}

// Calls column(name, member, limits) for every column, in the order of the file.
template <class Row, class Column>
void Columns(Row& r, Column&& column) {
  column("kernel_id", r.kernel_id, kKey);
  column("operation", r.operation, kKey);
  column("device_id", r.device_id, kKey);
  column("sm_version", r.sm_version, kKey);
  column("dtype", r.dtype, Limits{.role = Role::kIdentity, .fits = &IsDType, .form = "a dtype's name"});
  column("head_dim", r.head_dim, kKey);
  column("seq_bucket", r.seq_bucket, kKey);
  column("batch_bucket", r.batch_bucket, kKey);
  column("num_heads", r.num_heads, kIdentityKnown);
  column("num_kv_heads", r.num_kv_heads, kIdentityKnown);
  column("is_causal", r.is_causal, kIdentityKnown);
  column("quant_format", r.quant_format, kIdentityKnown);
  column("quant_dtype", r.quant_dtype, kIdentityKnown);
  column("quant_scale_granularity", r.quant_scale_granularity, kIdentityKnown);
  column("quant_zero_point", r.quant_zero_point, kIdentityKnown);
  column("axes", r.axes, kIdentityKnown);
  column("options", r.options, kIdentityKnown);
  column("cache_state", r.cache_state, Limits{.role = Role::kIdentity, .choices = "warm|cold"});
  column("execution", r.execution, Limits{.role = Role::kIdentity, .choices = "eager|graph"});

  column("median_us", r.median_us, Limits{.least = std::numeric_limits<double>::min()});
  column("p95_us", r.p95_us, Limits{.least = std::numeric_limits<double>::min()});
  column("samples", r.samples, Limits{.least = 1});
  column("variance_us", r.variance_us, kKnown);
  column("low_us", r.low_us, kKnown);
  column("high_us", r.high_us, kKnown);
  column("warmup_ms", r.warmup_ms, kKnown);

  column("protocol", r.protocol, Limits{.role = Role::kRun, .least = 1});
  column("warmup_runs", r.warmup_runs, Limits{});
  column("timer", r.timer, RunChoice("wall|cuda_event", false));
  column("interleaved", r.interleaved, Limits{});
  column("temperature", r.temperature, RunChoice("cold|warm|hot", true));
  column("memory_pressure", r.memory_pressure, RunChoice("low|medium|high", true));
  column("power_state", r.power_state, RunChoice("boost|nominal|throttled", true));
  column("concurrent_work", r.concurrent_work, kRunKnown);

  column("max_error", r.max_error, kKnown);
  column("mean_error", r.mean_error, kKnown);
  column("error_bound", r.error_bound, kKnown);

  column("kernel_version", r.kernel_version, kKernel);
  column("layerzero_version", r.layerzero_version, Limits{});
  column("build_id", r.build_id, Limits{});
  column("backend", r.backend, kKernel);
  column("backend_version", r.backend_version, kKernelKnown);
  column("capabilities_hash", r.capabilities_hash,
         Limits{.role = Role::kKernel, .optional = true, .fits = &IsHash, .form = "64 lower-case hexadecimal digits"});
  column("device_uuid", r.device_uuid, kRunKnown);
  column("driver_version", r.driver_version, kRunKnown);
  column("cuda_version", r.cuda_version, kRunKnown);
  column("torch_version", r.torch_version, kRunKnown);
  column("measured_at", r.measured_at, Limits{.fits = &IsTime, .form = "a UTC time like 2026-01-31T12:00:00Z"});
  column("valid", r.valid, kKnown);
}

}  // namespace lz::perfdb
