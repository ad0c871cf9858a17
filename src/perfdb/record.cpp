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

// `field`: within what is read, since most of what is read is valid: ".axes.b" of a record, "" for the whole.
Status Bad(std::string field, std::string wanted, std::string got) {
  return {StatusCode::kConfig,
          {std::move(field), std::move(wanted), std::move(got), "see schemas/records.schema.json"}};
}
Status BadColumn(std::string_view column, std::string wanted, const json& got) {
  return Bad("." + std::string(column), std::move(wanted), JsonText(got));
}
Status Within(const std::string& field, const Status& status) {
  ErrorParts parts = status.parts();
  parts.field.insert(0, field);
  return {status.code(), std::move(parts)};
}

Status Read(std::string_view column, const json& value, const Limits& limits, std::string* out) {
  const auto* text = value.get_ptr<const std::string*>();
  if (!limits.choices.empty() && !(text && IsChoice(limits.choices, *text))) {
    return BadColumn(column, "one of " + std::string(limits.choices), value);
  }
  if (!text || text->empty() || text->size() > kMaxText) {
    return BadColumn(column, "a text of 1 to " + std::to_string(kMaxText) + " bytes", value);
  }
  if (limits.fits && !limits.fits(*text)) return BadColumn(column, std::string(limits.form), value);
  *out = *text;
  return {};
}
Status Read(std::string_view column, const json& value, const Limits&, bool* out) {
  if (!value.is_boolean()) return BadColumn(column, "true or false", value);
  *out = value.get<bool>();
  return {};
}
Status Read(std::string_view column, const json& value, const Limits& limits, int64_t* out) {
  const int64_t least = int64_t(limits.least);
  const bool whole = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t(kMaxNumber);
  if (!whole || value.get<int64_t>() < least) {
    return BadColumn(column, "a whole number from " + std::to_string(least) + " to 2^53", value);
  }
  *out = value.get<int64_t>();
  return {};
}
Status Read(std::string_view column, const json& value, const Limits& limits, double* out) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= limits.least) || !std::isfinite(number)) {
    return BadColumn(column, limits.least > 0 ? "a finite number above 0" : "a finite number from 0 on", value);
  }
  *out = number;
  return {};
}
template <class T>
Status Read(std::string_view column, const json& value, const Limits&, std::map<std::string, T>* out) {
  if (!value.is_object() || value.size() > kMaxNames) {
    return BadColumn(column, "an object of at most " + std::to_string(kMaxNames) + " names", value);
  }
  for (const auto& [name, one] : value.items()) {
    if (name.empty() || name.size() > kMaxText) return BadColumn(column, "names of parameters or axes", name);
    if (Status status = Read(name, one, Limits{}, &(*out)[name]); !status.ok()) {
      return Within("." + std::string(column), status);
    }
  }
  return {};
}
template <class T>
Status Read(std::string_view column, const json& value, const Limits& limits, std::optional<T>* out) {
  if (value.is_null()) return {};
  return Read(column, value, limits, &out->emplace());
}

template <class T>
OrderedJson ToJson(const T& value) {
  return value;
}
template <class T>
OrderedJson ToJson(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

Status NameUnknown(const Record& record, const json& document) {
  std::set<std::string_view> known;
  Columns(record, [&](std::string_view name, const auto&, const Limits&) { known.insert(name); });
  for (const auto& [name, value] : document.items()) {
    if (!known.contains(name)) return Bad("." + name, "a column of the schema", "another key");
  }
  return {};
}

Result<Record> ReadRecord(const json& document) {
  if (!document.is_object()) return Bad("", "an object", JsonText(document));
  Record record;
  Status status;
  size_t read = 0;
  Columns(record, [&](std::string_view name, auto& member, const Limits& limits) {
    if (!status.ok()) return;
    const auto it = document.find(name);
    if (it != document.end()) {
      ++read;
      status = Read(name, *it, limits, &member);
    } else if (!limits.optional) {
      status = Bad("." + std::string(name), "a value", "nothing");
    }
  });
  if (!status.ok()) return status;
  if (read != document.size()) return NameUnknown(record, document);
  if (record.p95_us < record.median_us) {
    return Bad(".p95_us", "at least median_us, " + std::to_string(record.median_us), std::to_string(record.p95_us));
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
  const json version = document->value("schema_version", json()), none;
  if (version != "1.0") return Bad(file + ": schema_version", "\"1.0\"", JsonText(version));
  const auto found = document->find("records");
  const json& rows = found == document->end() ? none : *found;  // no copy: it may have 100,000 values
  if (!rows.is_array()) return Bad(file + ": records", "an array", JsonText(rows));
  std::vector<Record> records;
  std::map<std::string, size_t> seen;
  const auto field = [&](size_t i) { return file + ": records[" + std::to_string(i) + "]"; };
  for (size_t i = 0; i < rows.size(); ++i) {
    auto record = ReadRecord(rows[i]);
    if (!record.ok()) return Within(field(i), record.status());
    const auto [first, is_new] = seen.emplace(KeyOf(*record), i);
    if (!is_new) return Bad(field(i), "one record of a key", "that of records[" + std::to_string(first->second) + "]");
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
