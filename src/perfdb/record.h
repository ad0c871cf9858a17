// Measured records: one measurement of one kernel on one device, as JSON (schemas/records.schema.json). The format of
// measured priors; the columns are those of the performance database.
//   auto records = ReadRecords(text, "devices/zen5.records.json");   // Result<std::vector<Record>>
//   std::string again = WriteRecords(*records);
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

#define LZ_RECORDS_API __attribute__((visibility("default")))

namespace lz::perfdb {

// Version of the measurement method (python/layerzero/bench/operations.py); raised when older times are no longer
// comparable with new ones.
inline constexpr int64_t kProtocol = 1;

// Times in microseconds unless the name says otherwise. Empty optionals are null: unknown, or not applicable.
struct Record {
  // Identity: equal identities are one record.
  std::string kernel_id, operation;
  std::string device_id;   // as the driver names it
  int64_t sm_version = 0;  // 0: no NVIDIA GPU
  std::string dtype;       // dtype of the first tensor
  int64_t head_dim = 0;    // 0, here and below: the operation has none
  int64_t seq_bucket = 0, batch_bucket = 0;
  int64_t num_heads = 0, num_kv_heads = 0;
  std::optional<bool> is_causal;
  std::optional<std::string> quant_format, quant_dtype, quant_scale_granularity;
  std::optional<bool> quant_zero_point;
  std::map<std::string, int64_t> axes;  // the contract's axes by name, as measured
  // The other options of the call, as OptionsOf returns them: {"format": "int8", "bias": "given"}.
  std::map<std::string, std::string> options;
  std::string cache_state = "warm";  // warm, cold: the data are in the caches or not
  std::string execution = "eager";   // eager, graph

  // Measurement.
  double median_us = 0, p95_us = 0;
  int64_t samples = 0;
  std::optional<double> variance_us;      // in us^2
  std::optional<double> low_us, high_us;  // 95 % interval of the median
  std::optional<double> warmup_ms;        // first run: warm-up or compilation

  // Protocol and environment.
  int64_t protocol = kProtocol;
  int64_t warmup_runs = 0;
  std::string timer = "wall";                  // wall, cuda_event
  bool interleaved = false;                    // taken in turns with the other candidates, in one process
  std::optional<std::string> temperature;      // cold (below 50 C), warm, hot (above 70 C)
  std::optional<std::string> memory_pressure;  // low (below 50 %), medium, high (above 80 %)
  std::optional<std::string> power_state;      // boost, nominal, throttled
  std::optional<bool> concurrent_work;

  // Accuracy against the FP64 reference, in the measure of the operation's tolerance.
  std::optional<double> max_error, mean_error, error_bound;

  // Provenance.
  std::string kernel_version, layerzero_version, build_id, backend;
  // backend_version: version of the kernel's library, as in KernelEntry::availability; null: this build's own code.
  std::optional<std::string> backend_version, capabilities_hash, device_uuid;
  std::optional<std::string> driver_version, cuda_version, torch_version;
  std::string measured_at;  // 2026-01-31T12:00:00Z
  bool valid = true;        // false: kept, but not used
};

// `what` names the file in messages: "<what>: records[3].median_us". Unknown keys, values out of range and two records
// of one key (key.h) are errors; at most 16 MiB.
LZ_RECORDS_API Result<std::vector<Record>> ReadRecords(std::string_view text, std::string_view what);
// One line per record, keys in the order of the struct, null for unknown values: equal records have equal bytes.
LZ_RECORDS_API std::string WriteRecords(std::span<const Record> records);

}  // namespace lz::perfdb
