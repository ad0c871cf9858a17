// The class of a call and the documents of tables: names instead of numbers.
#include <algorithm>
#include <charconv>
#include <limits>

#include "base/json_reader.h"
#include "core/call_reason.h"
#include "engine/table.h"

namespace lz {
namespace {

constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();

Status Wrong(const std::string& what, std::string wanted, std::string got) {
  return Status(StatusCode::kConfig, {.field = what,
                                      .wanted = std::move(wanted),
                                      .got = std::move(got),
                                      .fix = "make it again with `layerzero solve`"});
}

// The values of an exact number (an alignment, a rank) that every rule of a kernel treats like `value`.
table::Interval AlikeOf(const OperationState& state, uint16_t field, int64_t value, int64_t most) {
  const auto alike = [&](int64_t other) {
    const auto same = [&](const Row& row) {
      return row.predicate >= 0 || row.field != field || row.fact >= 0 ||
             Holds(row.rel, value, row.operand, row.set) == Holds(row.rel, other, row.operand, row.set);
    };
    const auto all = [&](const std::vector<Row>& rows) { return std::ranges::all_of(rows, same); };
    for (size_t v = 0; v < state.kernels.size(); ++v) {
      if (!all(state.variant_conditions[v])) return false;
      for (const KernelEntry* k : state.kernels[v]) {
        if (!all(k->rows)) return false;
        if (!std::ranges::all_of(k->preferences, [&](const auto& p) { return all(p.when); })) return false;
      }
    }
    return true;
  };
  table::Interval range = {int32_t(value), int32_t(value)};
  while (range.lo > 0 && alike(range.lo - 1)) --range.lo;
  while (range.hi < most && alike(range.hi + 1)) ++range.hi;
  return range;
}

Json RangeJson(table::Interval range) {
  return Json::array(
      {range.lo == kLeast ? Json(nullptr) : Json(range.lo), range.hi >= kMost - 1 ? Json(nullptr) : Json(range.hi)});
}

bool ParseNumber(std::string_view text, int64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// The reverse of ValueText, for the values that classes have.
bool ParseValue(const Operation& op, const Field& f, const std::string& text, int64_t* value) {
  if (f.type == FieldType::kDType) {
    const DType dtype = DTypeFromName(text);
    *value = int64_t(dtype);
    return dtype != DType::kUnknown || text == "absent";
  }
  if (f.type == FieldType::kBool) {
    *value = text == "true";
    return *value || text == "false";
  }
  if (f.type == FieldType::kChoice) return (*value = ChoiceIndex(f.choices, text)) >= 0;
  if (f.name == "layout") {
    const auto at = std::ranges::find(op.layout_names(), text);
    *value = at - op.layout_names().begin();
    return at != op.layout_names().end();
  }
  return ParseNumber(text, value);
}

bool ParseRange(const Operation& op, const std::string& name, const nlohmann::json& given, table::Interval* range) {
  const auto field = op.FindField(name);
  if (given.is_array()) {
    if (given.size() != 2) return false;
    for (size_t i = 0; i < 2; ++i) {
      if (given[i].is_null()) continue;
      if (!given[i].is_number_integer()) return false;
      const int64_t v = given[i].get<int64_t>();
      if (v < kLeast || v > kMost) return false;
      (i == 0 ? range->lo : range->hi) = int32_t(v);
    }
    return field && range->lo <= range->hi;
  }
  int64_t value = 0;
  Constraint condition;
  std::vector<int64_t> set;
  if (given.is_boolean() && !field) {
    if (!PredicateOf(name, &condition, &set)) return false;
    value = given.get<bool>();
  } else if (!field || !given.is_string() ||
             !ParseValue(op, op.fields()[*field], given.get_ref<const std::string&>(), &value)) {
    return false;
  }
  range->lo = range->hi = int32_t(value);
  return true;
}

Result<table::Entry> ReadEntry(const Registry& registry, const nlohmann::json& one, uint32_t plan,
                               const std::string& what) {
  const auto text = [&](const char* key) {
    const auto at = one.find(key);
    return at != one.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  table::Entry entry{text("op"), text("kernel_id"), {}, plan, 0};
  const Operation* const op = registry.Find(entry.operation);
  if (!op || Registry::VariantIndex(*op, entry.operation) < 0) {
    return Wrong(what + ": op", "the id of an operation", "'" + entry.operation + "'");
  }
  if (entry.kernel.empty()) return Wrong(what + ": kernel_id", "the id of a kernel", "none");
  const auto us = one.find("us"), when = one.find("when");
  if (us != one.end() && us->is_number()) entry.us = us->get<float>();
  if (when == one.end() || !when->is_object()) return Wrong(what + ": when", "an object", "none");
  for (const auto& [name, given] : when->items()) {
    if (!ParseRange(*op, name, given, &entry.when[name])) {
      return Wrong(what + ": when", "a variable of " + entry.operation + " with its values",
                   name + ": " + JsonText(given));
    }
  }
  return entry;
}

}  // namespace

Json ClassOfCall(const BoundCall& call) {
  const Operation& op = *call.op;
  const OperationState& state = *call.state;
  Facts lo, hi;
  state.classifier.RangeOf(call.facts, &lo, &hi);
  Json of = Json::object();
  for (size_t i = 0; i < op.fields().size(); ++i) {
    const Field& f = op.fields()[i];
    if (f.home != FieldHome::kSlot || op.FindField(f.name) != uint16_t(i)) continue;
    if (f.is_range()) {
      const table::Interval range = {lo.v[f.slot], hi.v[f.slot]};
      if (range.lo > kLeast || range.hi < kMost - 1) of[f.name] = RangeJson(range);
      continue;
    }
    if ((state.classifier.masks()[f.slot] & f.mask) == 0) continue;  // no rule reads it
    const int64_t v = int64_t(uint32_t(call.facts.v[f.slot] & f.mask) >> f.shift);
    const bool number = f.type == FieldType::kNumber && f.name != "layout";
    of[f.name] = number ? RangeJson(AlikeOf(state, uint16_t(i), v, int64_t(uint32_t(f.mask) >> f.shift)))
                        : Json(ValueText(op, &f, v));
  }
  for (size_t i = 0; i < state.predicates.size(); ++i) {
    if (!(state.classifier.predicates_used(int(i / 32)) >> (i % 32) & 1)) continue;
    of[PredicateName(op, state.predicates[i])] = bool(call.facts.v[kSlotPredicates0 + i / 32] >> (i % 32) & 1);
  }
  return of;
}

Json TableJson(const SelectionReport& report, const TableInForce* table) {
  if (report.table == TableUse::kNone || !table) return nullptr;
  const OperationTable::Found& found = report.table_found;
  Json j = {{"path", report.table_path},
            {"use", kTableUseNames[size_t(report.table)]},
            {"kernel_id", found.kernel ? Json(found.kernel->id) : Json(nullptr)},
            {"us", found.us > 0 ? Json(found.us) : Json(nullptr)},
            {"bucket", nullptr},
            {"joint", Json::array()},
            {"reason", nullptr}};
  const Json about = Json::parse(table->file().view().about(), nullptr, false);
  if (found.kernel && about.is_object() && about.contains("plans") && found.plan < about["plans"].size()) {
    const Json& plan = about["plans"][found.plan];
    for (const char* key : {"bucket", "joint"}) {
      if (plan.contains(key)) j[key] = plan[key];
    }
  }
  if (report.table == TableUse::kOutside) {
    const ReasonInfo& info = Info(kPlanBucketMiss);
    j["reason"] = {{"code", info.name},
                   {"field", "table"},
                   {"wanted", "an entry for the call"},
                   {"got", "none"},
                   {"message", report.table_path + ": " + std::string(info.cause)}};
  }
  return j;
}

Result<table::Content> ReadTableDocument(const Registry& registry, const std::string& text, const std::string& what) {
  auto read = ReadJson(text, {.what = what, .max_bytes = size_t{512} << 20, .max_values = 50'000'000});
  if (!read.ok()) return read.TakeStatus();
  nlohmann::json& doc = *read;
  const bool known = doc.is_object() && doc.contains("schema_version") && doc["schema_version"] == "1.0";
  if (!known || !doc.contains("plans") || !doc["plans"].is_array()) {
    return Wrong(what, "a dispatch table with \"schema_version\": \"1.0\" and plans", JsonText(doc));
  }
  table::Content content;
  uint32_t plan = 0;
  for (nlohmann::json& one : doc["plans"]) {
    if (!one.is_object() || !one.contains("ops") || !one["ops"].is_array()) {
      return Wrong(what + ": plans", "objects with a bucket and ops", JsonText(one));
    }
    for (const nlohmann::json& entry : one["ops"]) {
      auto made = ReadEntry(registry, entry, plan, what);
      if (!made.ok()) return made.TakeStatus();
      content.entries.push_back(std::move(*made));
    }
    one.erase("ops");
    ++plan;
  }
  content.about = doc.dump();
  return content;
}

Json TableDocument(const Registry& registry, const table::Content& content) {
  Json doc = Json::parse(content.about, nullptr, false);
  if (!doc.is_object() || !doc.contains("plans") || !doc["plans"].is_array()) return nullptr;
  for (Json& plan : doc["plans"]) plan["ops"] = Json::array();
  for (const table::Entry& entry : content.entries) {
    if (entry.plan >= doc["plans"].size()) continue;
    const Operation* const op = registry.Find(entry.operation);
    Json when = Json::object();
    for (const auto& [name, range] : entry.when) {
      const auto field = op ? op->FindField(name) : std::nullopt;
      const Field* const f = field ? &op->fields()[*field] : nullptr;
      const bool named = f && (f->type != FieldType::kNumber || f->name == "layout");
      const bool predicate = name.find(' ') != name.npos;
      when[name] = predicate && range.lo == range.hi ? Json(range.lo != 0)
                   : named && range.lo == range.hi   ? Json(ValueText(*op, f, range.lo))
                                                     : RangeJson(range);
    }
    Json one = {{"op", entry.operation}, {"kernel_id", entry.kernel}, {"when", std::move(when)}};
    one["us"] = entry.us > 0 ? Json(entry.us) : Json(nullptr);
    doc["plans"][entry.plan]["ops"].push_back(std::move(one));
  }
  return doc;
}

}  // namespace lz
