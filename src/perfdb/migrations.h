// The formats of the performance database. A step turns a database of format i into one of i + 1; a step that was
// released is never changed. The columns after all steps are those of columns.h, in any order (a test compares).
#pragma once

#include <array>
#include <span>

namespace lz::perfdb {

inline constexpr auto kFormat1 = std::to_array<const char*>({
    R"(CREATE TABLE records(
  key BLOB NOT NULL PRIMARY KEY,
  kernel_id TEXT NOT NULL, operation TEXT NOT NULL, device_id TEXT NOT NULL, sm_version INTEGER NOT NULL,
  dtype TEXT NOT NULL, head_dim INTEGER NOT NULL, seq_bucket INTEGER NOT NULL, batch_bucket INTEGER NOT NULL,
  num_heads INTEGER NOT NULL, num_kv_heads INTEGER NOT NULL, is_causal INTEGER,
  quant_format TEXT, quant_dtype TEXT, quant_scale_granularity TEXT, quant_zero_point INTEGER,
  axes TEXT NOT NULL, options TEXT NOT NULL, cache_state TEXT NOT NULL, execution TEXT NOT NULL,
  median_us REAL NOT NULL, p95_us REAL NOT NULL, samples INTEGER NOT NULL, variance_us REAL, warmup_ms REAL,
  protocol INTEGER NOT NULL, warmup_runs INTEGER NOT NULL, timer TEXT NOT NULL, interleaved INTEGER NOT NULL,
  temperature TEXT, memory_pressure TEXT, power_state TEXT, concurrent_work INTEGER,
  max_error REAL, mean_error REAL, error_bound REAL,
  kernel_version TEXT NOT NULL, layerzero_version TEXT NOT NULL, build_id TEXT NOT NULL, backend TEXT NOT NULL,
  backend_version TEXT, capabilities_hash TEXT, device_uuid TEXT, driver_version TEXT, cuda_version TEXT,
  torch_version TEXT, measured_at TEXT NOT NULL, valid INTEGER NOT NULL,
  checksum BLOB NOT NULL
) WITHOUT ROWID)",
    // The number of rows and the exclusive or of their checksums: rows that vanish are missed.
    "CREATE TABLE state(id INTEGER PRIMARY KEY CHECK(id = 1), rows INTEGER NOT NULL, digest BLOB NOT NULL)",
    "INSERT INTO state VALUES(1, 0, zeroblob(16))",
});
inline constexpr auto kFormat2 = std::to_array<const char*>({
    "ALTER TABLE records ADD COLUMN low_us REAL",
    "ALTER TABLE records ADD COLUMN high_us REAL",
});
inline constexpr std::array<std::span<const char* const>, 2> kMigrations = {kFormat1, kFormat2};

}  // namespace lz::perfdb
