// Reads and writes measured records as JSON.
#include "perfdb/record.h"

#include <cmath>
#include <set>

#include "base/json_reader.h"
#include "perfdb/columns.h"
#include "perfdb/key.h"

namespace lz::perfdb {
namespace {

using nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

Status Bad(const std::string& field, std::string wanted, std::string got) {
  return {StatusCode::kConfig, {field, std::move(wanted), std::move(got), "see schemas/records.schema.json"}};
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
    const auto [first, is_new] = seen.emplace(KeyOf(*record), i);
    if (!is_new) return Bad(field, "one record of a key", "that of records[" + std::to_string(first->second) + "]");
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
