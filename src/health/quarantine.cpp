#include "health/quarantine.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/json_reader.h"
#include "base/trusted_file.h"

namespace lz {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostQuarantineBytes = size_t{4} << 20;

constexpr auto kRelations = std::to_array<std::pair<std::string_view, Rel>>({{"==", Rel::kEq},
                                                                             {"!=", Rel::kNe},
                                                                             {">=", Rel::kGe},
                                                                             {">", Rel::kGt},
                                                                             {"<=", Rel::kLe},
                                                                             {"<", Rel::kLt},
                                                                             {"multiple of", Rel::kMultipleOf}});

// Reads one object; the first mistake stays.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Bad("", "an object", JsonText(object));
  }
  std::string Text(std::string_view key, bool required = false) {
    const Json* v = Find(key, required);
    if (!v) return "";
    if (v->is_string()) return v->get<std::string>();
    Bad(key, "a string", JsonText(*v));
    return "";
  }
  int64_t Integer(std::string_view key, int64_t absent, bool required = false) {
    const Json* v = Find(key, required);
    if (!v) return absent;
    if (v->is_number_integer()) return v->get<int64_t>();
    Bad(key, "an integer", JsonText(*v));
    return absent;
  }
  const Json* Find(std::string_view key, bool required = false) {
    known_.emplace_back(key);
    if (!object_.is_object()) return nullptr;
    const auto at = object_.find(key);
    if (at != object_.end()) return &*at;
    if (required) Bad(key, "a value", "none");
    return nullptr;
  }
  VersionRange Range(std::string_view key) {
    const Json* v = Find(key);
    if (!v) return {};
    Fields range(*v, where_ + "." + std::string(key));
    VersionRange read{range.Text("min"), range.Text("below")};
    Keep(range.Finish());
    return read;
  }
  void Bad(std::string_view key, std::string wanted, std::string got) {
    if (!status_.ok()) return;
    status_ = Status(StatusCode::kConfig, {.field = where_ + (key.empty() ? "" : "." + std::string(key)),
                                           .wanted = std::move(wanted),
                                           .got = std::move(got)});
  }
  void Keep(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  Status Finish() {
    if (object_.is_object()) {
      for (const auto& [key, value] : object_.items()) {
        if (std::ranges::find(known_, key) == known_.end()) Bad(key, "a known key", "an unknown one");
      }
    }
    return std::move(status_);
  }

 private:
  const Json& object_;
  std::string where_;
  std::vector<std::string> known_;
  Status status_;
};

std::vector<CallCondition> ReadConditions(Fields& row, const std::string& where) {
  std::vector<CallCondition> conditions;
  const Json* list = row.Find("when");
  if (!list) return conditions;
  if (!list->is_array()) row.Bad("when", "an array", JsonText(*list));
  if (!list->is_array()) return conditions;
  for (const Json& one : *list) {
    Fields f(one, where + ".when");
    CallCondition c{.field = f.Text("field", true), .operand = f.Integer("value", 0, true)};
    const std::string relation = f.Text("relation", true);
    const auto at = std::ranges::find(kRelations, std::string_view(relation), &decltype(kRelations)::value_type::first);
    if (at == kRelations.end()) {
      f.Bad("relation", "==, !=, >=, >, <=, < or multiple of", "'" + relation + "'");
    } else {
      c.rel = at->second;
    }
    conditions.push_back(std::move(c));
    row.Keep(f.Finish());
  }
  return conditions;
}

Result<QuarantineRow> ReadRow(const Json& object, const std::string& where, const std::string& what) {
  Fields f(object, where);
  QuarantineRow row;
  row.kernel = f.Text("kernel", true);
  row.operation = f.Text("operation", true);
  row.when = ReadConditions(f, where);
  row.device = f.Text("device");
  row.version = f.Text("version");
  row.driver = f.Text("driver");
  row.library_versions = f.Range("library_versions");
  row.driver_versions = f.Range("driver_versions");
  const std::string outcome = f.Text("outcome", true);
  row.outcome = OutcomeFromName(outcome);
  if (row.outcome == Outcome::kDone) f.Bad("outcome", "the name of an outcome", "'" + outcome + "'");
  row.detail = f.Text("detail");
  row.since = f.Integer("since", 0);
  row.until = f.Integer("until", 0);
  row.strikes = int(std::clamp<int64_t>(f.Integer("strikes", 1), 1, 1000000));
  row.origin = what;
  LZ_RETURN_IF_ERROR(f.Finish());
  return row;
}

// The numbers of a version: {2, 13, 0} of "2.13.0+cpu".
std::vector<int64_t> NumbersOf(std::string_view version) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < version.size() && version[i] != '+' && version[i] != '-';) {
    if (version[i] < '0' || version[i] > '9') {
      ++i;
      continue;
    }
    int64_t n = 0;
    for (; i < version.size() && version[i] >= '0' && version[i] <= '9'; ++i) {
      n = std::min<int64_t>(n * 10 + (version[i] - '0'), 1'000'000'000'000);
    }
    numbers.push_back(n);
  }
  while (!numbers.empty() && numbers.back() == 0) numbers.pop_back();  // 2.13 is 2.13.0
  return numbers;
}

Status FileError(const std::string& path, std::string_view what) {
  return Status(StatusCode::kConfig, {.field = path,
                                      .wanted = "a file that can be " + std::string(what),
                                      .got = std::strerror(errno),
                                      .fix = "the quarantine holds for this process alone"});
}

}  // namespace

bool VersionRange::Holds(std::string_view version) const {
  const auto v = NumbersOf(version);
  return (min.empty() || v >= NumbersOf(min)) && (below.empty() || v < NumbersOf(below));
}

bool QuarantineRow::IsSame(const QuarantineRow& o) const {
  return kernel == o.kernel && operation == o.operation && when == o.when && device == o.device;
}

Json RowToJson(const QuarantineRow& row) {
  Json when = Json::array();
  for (const CallCondition& c : row.when) {
    when.push_back({{"field", c.field}, {"relation", RelText(c.rel)}, {"value", c.operand}});
  }
  Json j = {{"kernel", row.kernel},    {"operation", row.operation},
            {"when", std::move(when)}, {"outcome", kOutcomeNames[size_t(row.outcome)]},
            {"detail", row.detail},    {"since", row.since},
            {"until", row.until},      {"strikes", row.strikes}};
  const auto text = [&](const char* key, const std::string& value) {
    if (!value.empty()) j[key] = value;
  };
  const auto range = [&](const char* key, const VersionRange& r) {
    if (r != VersionRange()) j[key] = {{"min", r.min}, {"below", r.below}};
  };
  text("device", row.device);
  text("version", row.version);
  text("driver", row.driver);
  range("library_versions", row.library_versions);
  range("driver_versions", row.driver_versions);
  return j;
}

Result<std::vector<QuarantineRow>> ReadQuarantine(std::string_view text, const std::string& what) {
  auto doc = ReadJson(text, {.what = what, .max_bytes = kMostQuarantineBytes});
  if (!doc.ok()) return doc.TakeStatus();
  Fields f(*doc, what);
  if (const int64_t version = f.Integer("version", 0, true); version != 1)
    f.Bad("version", "1", std::to_string(version));
  std::vector<QuarantineRow> rows;
  const Json* list = f.Find("rows", true);
  if (list && !list->is_array()) f.Bad("rows", "an array", JsonText(*list));
  for (size_t i = 0; list && list->is_array() && i < list->size(); ++i) {
    auto row = ReadRow((*list)[i], what + ": rows[" + std::to_string(i) + "]", what);
    if (!row.ok()) return row.TakeStatus();
    rows.push_back(std::move(*row));
  }
  LZ_RETURN_IF_ERROR(f.Finish());
  return rows;
}

const QuarantineRow& AddTo(std::vector<QuarantineRow>* rows, QuarantineRow row) {
  const auto at = std::ranges::find_if(*rows, [&](const QuarantineRow& r) { return r.IsSame(row); });
  if (at == rows->end()) return rows->emplace_back(std::move(row));
  const bool same_versions = at->version == row.version && at->driver == row.driver;
  row.strikes = same_versions ? at->strikes + 1 : 1;
  if (row.strikes > 1) row.until = 0;
  *at = std::move(row);
  return *at;
}

QuarantineFile::Lock::Lock(const std::string& folder) {
  if (!MakeTrustedFolder(folder).ok()) return;
  file = open((folder + "/quarantine.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file >= 0) (void)flock(file, LOCK_EX);
}
QuarantineFile::Lock::~Lock() {
  if (file >= 0) close(file);
}

Result<std::vector<QuarantineRow>> QuarantineFile::Read() const {
  auto text = ReadTrustedFile(path(), kMostQuarantineBytes);
  if (!text.ok()) return text.TakeStatus();
  if (!*text) return std::vector<QuarantineRow>();
  return ReadQuarantine(**text, path());
}

Status QuarantineFile::Write(const std::vector<QuarantineRow>& rows) const {
  constexpr size_t kMostRows = 4000;  // the newest
  LZ_RETURN_IF_ERROR(MakeTrustedFolder(folder_));
  Json list = Json::array();
  for (size_t i = rows.size() - std::min(rows.size(), kMostRows); i < rows.size(); ++i) {
    list.push_back(RowToJson(rows[i]));
  }
  const std::string text =
      Json{{"version", 1}, {"rows", std::move(list)}}.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::string temporary = path() + ".XXXXXX";
  const int file = mkostemp(temporary.data(), O_CLOEXEC);
  if (file < 0) return FileError(path(), "written");
  const bool written = write(file, text.data(), text.size()) == ssize_t(text.size()) && fsync(file) == 0;
  const bool closed = close(file) == 0;
  if (written && closed && rename(temporary.c_str(), path().c_str()) == 0) return {};
  Status status = FileError(path(), "written");
  (void)unlink(temporary.c_str());
  return status;
}

}  // namespace lz
