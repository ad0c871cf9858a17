// Reads and writes measured records as JSON. One list of columns serves reader, writer and identity.
#include "perfdb/record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/json_reader.h"
#include "core/dtype.h"

namespace lz::perfdb {
namespace {

using nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxText = 256, kMaxNames = 32;
constexpr int64_t kMaxNumber = int64_t{1} << 53;  // every JSON reader keeps such integers exactly

Status Bad(const std::string& field, std::string wanted, std::string got) {
  return {StatusCode::kConfig, {field, std::move(wanted), std::move(got), "see schemas/records.schema.json"}};
}

// Limits of a column besides its C++ type.
struct Limits {
  bool identity = false;
  bool optional = false;          // the key may be missing
  std::string_view choices = {};  // "warm|cold"
  bool (*fits)(const std::string&) = nullptr;
  std::string_view form = {};  // the form that fits() checks
  double least = 0;
};

bool IsDType(const std::string& s) { return DTypeFromName(s) != DType::kUnknown && Info(DTypeFromName(s)).name == s; }
bool IsHash(const std::string& s) {
  return s.size() == 64 &&
         std::ranges::all_of(s, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool IsTime(const std::string& s) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00Z";
  if (s.size() != kForm.size()) return false;
  for (size_t i = 0; i < s.size(); ++i) {
    if (kForm[i] == '0' ? s[i] < '0' || s[i] > '9' : s[i] != kForm[i]) return false;
  }
  const auto part = [&](size_t at) { return (s[at] - '0') * 10 + s[at + 1] - '0'; };
  return part(5) >= 1 && part(5) <= 12 && part(8) >= 1 && part(8) <= 31 && part(11) < 24 && part(14) < 60 &&
         part(17) <= 60;
}

constexpr Limits kKey = {.identity = true};
constexpr Limits kKnown = {.optional = true};
constexpr Limits kIdentityKnown = {.identity = true, .optional = true};
constexpr Limits Choice(std::string_view choices, bool optional) { return {.optional = optional, .choices = choices}; }

// Calls column(name, member, limits) for every column, in the order of the file.
template <class Row, class Column>
void Columns(Row& r, Column&& column) {
  column("kernel_id", r.kernel_id, kKey);
  column("operation", r.operation, kKey);
  column("device_id", r.device_id, kKey);
  column("sm_version", r.sm_version, kKey);
  column("dtype", r.dtype, Limits{.identity = true, .fits = &IsDType, .form = "a dtype's name"});
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
  column("cache_state", r.cache_state, Limits{.identity = true, .choices = "warm|cold"});
  column("execution", r.execution, Limits{.identity = true, .choices = "eager|graph"});

  column("median_us", r.median_us, Limits{.least = std::numeric_limits<double>::min()});
  column("p95_us", r.p95_us, Limits{.least = std::numeric_limits<double>::min()});
  column("samples", r.samples, Limits{.least = 1});
  column("variance_us", r.variance_us, kKnown);
  column("warmup_ms", r.warmup_ms, kKnown);

  column("protocol", r.protocol, Limits{.least = 1});
  column("warmup_runs", r.warmup_runs, Limits{});
  column("timer", r.timer, Choice("wall|cuda_event", false));
  column("interleaved", r.interleaved, Limits{});
  column("temperature", r.temperature, Choice("cold|warm|hot", true));
  column("memory_pressure", r.memory_pressure, Choice("low|medium|high", true));
  column("power_state", r.power_state, Choice("boost|nominal|throttled", true));
  column("concurrent_work", r.concurrent_work, kKnown);

  column("max_error", r.max_error, kKnown);
  column("mean_error", r.mean_error, kKnown);
  column("error_bound", r.error_bound, kKnown);

  column("kernel_version", r.kernel_version, Limits{});
  column("layerzero_version", r.layerzero_version, Limits{});
  column("build_id", r.build_id, Limits{});
  column("backend", r.backend, Limits{});
  column("backend_version", r.backend_version, kKnown);
  column("capabilities_hash", r.capabilities_hash,
         Limits{.optional = true, .fits = &IsHash, .form = "64 lower-case hexadecimal digits"});
  column("device_uuid", r.device_uuid, kKnown);
  column("driver_version", r.driver_version, kKnown);
  column("cuda_version", r.cuda_version, kKnown);
  column("torch_version", r.torch_version, kKnown);
  column("measured_at", r.measured_at, Limits{.fits = &IsTime, .form = "a UTC time like 2026-01-31T12:00:00Z"});
  column("valid", r.valid, kKnown);
}

bool IsChoice(std::string_view choices, std::string_view value) {
  for (bool more = true; more;) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == value) return true;
    more = bar != choices.npos;
    if (more) choices.remove_prefix(bar + 1);
  }
  return false;
}

Status Read(const std::string& field, const json& value, const Limits& limits, std::string* out) {
  const auto* text = value.get_ptr<const std::string*>();
  if (!limits.choices.empty() && !(text && IsChoice(limits.choices, *text))) {
    return Bad(field, "one of " + std::string(limits.choices), JsonText(value));
  }
  if (!text || text->empty() || text->size() > kMaxText) {
    return Bad(field, "a text of 1 to " + std::to_string(kMaxText) + " bytes", JsonText(value));
  }
  if (limits.fits && !limits.fits(*text)) return Bad(field, std::string(limits.form), JsonText(value));
  *out = *text;
  return {};
}
Status Read(const std::string& field, const json& value, const Limits&, bool* out) {
  if (!value.is_boolean()) return Bad(field, "true or false", JsonText(value));
  *out = value.get<bool>();
  return {};
}
Status Read(const std::string& field, const json& value, const Limits& limits, int64_t* out) {
  const int64_t least = int64_t(limits.least);
  const bool whole = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t(kMaxNumber);
  if (!whole || value.get<int64_t>() < least) {
    return Bad(field, "a whole number from " + std::to_string(least) + " to 2^53", JsonText(value));
  }
  *out = value.get<int64_t>();
  return {};
}
Status Read(const std::string& field, const json& value, const Limits& limits, double* out) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= limits.least) || !std::isfinite(number)) {
    return Bad(field, limits.least > 0 ? "a finite number above 0" : "a finite number from 0 on", JsonText(value));
  }
  *out = number;
  return {};
}
template <class T>
Status Read(const std::string& field, const json& value, const Limits&, std::map<std::string, T>* out) {
  if (!value.is_object() || value.size() > kMaxNames) {
    return Bad(field, "an object of at most " + std::to_string(kMaxNames) + " names", JsonText(value));
  }
  for (const auto& [name, one] : value.items()) {
    if (name.empty() || name.size() > kMaxText) return Bad(field, "names of parameters or axes", "\"" + name + "\"");
    LZ_RETURN_IF_ERROR(Read(field + "." + name, one, Limits{}, &(*out)[name]));
  }
  return {};
}
template <class T>
Status Read(const std::string& field, const json& value, const Limits& limits, std::optional<T>* out) {
  if (value.is_null()) return {};
  return Read(field, value, limits, &out->emplace());
}

template <class T>
OrderedJson ToJson(const T& value) {
  return value;
}
template <class T>
OrderedJson ToJson(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

Result<Record> ReadRecord(const std::string& field, const json& document) {
  if (!document.is_object()) return Bad(field, "an object", JsonText(document));
  Record record;
  Status status;
  std::set<std::string_view> known;
  Columns(record, [&](std::string_view name, auto& member, const Limits& limits) {
    known.insert(name);
    if (!status.ok()) return;
    const auto it = document.find(name);
    const std::string path = field + "." + std::string(name);
    if (it != document.end()) {
      status = Read(path, *it, limits, &member);
    } else if (!limits.optional) {
      status = Bad(path, "a value", "nothing");
    }
  });
  if (!status.ok()) return status;
  for (const auto& [name, value] : document.items()) {
    if (!known.contains(name)) return Bad(field + "." + name, "a column of the schema", "another key");
  }
  if (record.p95_us < record.median_us) {
    return Bad(field + ".p95_us", "at least median_us, " + std::to_string(record.median_us),
               std::to_string(record.p95_us));
  }
  return record;
}

std::string IdentityOf(const Record& record) {
  OrderedJson identity;
  Columns(record, [&](std::string_view name, const auto& member, const Limits& limits) {
    if (limits.identity) identity[std::string(name)] = ToJson(member);
  });
  return identity.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

Result<std::vector<Record>> ReadRecords(std::string_view text, std::string_view what) {
  const std::string file(what);
  auto document =
      ReadJson(text, {.what = file, .max_bytes = size_t{16} << 20, .max_depth = 5, .max_values = size_t{2} << 20});
  if (!document.ok()) return document.TakeStatus();
  if (!document->is_object()) return Bad(file, "an object", JsonText(*document));
  for (const auto& [name, value] : document->items()) {
    if (name != "schema_version" && name != "records") return Bad(file + ": " + name, "no such key", JsonText(value));
  }
  const json version = document->value("schema_version", json());
  if (version != "1.0") return Bad(file + ": schema_version", "\"1.0\"", JsonText(version));
  const json rows = document->value("records", json());
  if (!rows.is_array()) return Bad(file + ": records", "an array", JsonText(rows));
  std::vector<Record> records;
  std::map<std::string, size_t> seen;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string field = file + ": records[" + std::to_string(i) + "]";
    auto record = ReadRecord(field, rows[i]);
    if (!record.ok()) return record.TakeStatus();
    const auto [first, is_new] = seen.emplace(IdentityOf(*record), i);
    if (!is_new)
      return Bad(field, "one record of an identity", "that of records[" + std::to_string(first->second) + "]");
    records.push_back(std::move(*record));
  }
  return records;
}

std::string WriteRecords(std::span<const Record> records) {
  std::string text = "{\"schema_version\": \"1.0\", \"records\": [";
  for (size_t i = 0; i < records.size(); ++i) {
    OrderedJson row;
    Columns(records[i],
            [&](std::string_view name, const auto& member, const Limits&) { row[std::string(name)] = ToJson(member); });
    text += (i ? ",\n" : "\n") + row.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }
  return text + (records.empty() ? "]}\n" : "\n]}\n");
}

}  // namespace lz::perfdb
