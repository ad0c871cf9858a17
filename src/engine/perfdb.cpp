// The commands of `layerzero perfdb`, and the queue of records that are measured while operations run.
#include <ctime>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "perfdb/database.h"

namespace lz {
namespace {

using Json = nlohmann::ordered_json;
using perfdb::Database;
using perfdb::How;

Json TextOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string Dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json CountsJson(const Database::Counts& c) {
  return {{"added", c.added}, {"replaced", c.replaced}, {"unchanged", c.unchanged}, {"removed", c.removed}};
}

Json QueueJson(const perfdb::Writer::Counts& c) {
  return {{"added", c.added},   {"written", c.written}, {"dropped", c.dropped},
          {"failed", c.failed}, {"waiting", c.waiting}, {"problem", TextOrNull(c.problem)}};
}

Result<How> HowOf(const std::string& name) {
  if (name == "replace") return How::kReplace;
  if (name == "newer") return How::kNewer;
  if (name == "replace_run") return How::kReplaceRun;
  return Status(StatusCode::kConfig, {"how", "replace, newer or replace_run", name, {}});
}

std::string TextOf(const nlohmann::json& arguments, const char* name) {
  const auto found = arguments.find(name);
  return found != arguments.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// The records of an argument: a document, or all rows of another database.
Result<std::vector<perfdb::Record>> Given(const nlohmann::json& arguments) {
  if (const std::string from = TextOf(arguments, "from"); !from.empty()) {
    auto contents = Database(from).Read();
    if (!contents.ok()) return contents.TakeStatus();
    return std::move(contents->records);
  }
  return perfdb::ReadRecords(TextOf(arguments, "document"), "records");
}

Result<std::string> Vacuum(const Database& database) {
  auto cleaned = database.Vacuum(std::time(nullptr));
  if (!cleaned.ok()) return cleaned.TakeStatus();
  return Dump({{"path", database.path()},
               {"kept", cleaned->kept},
               {"expired", cleaned->expired},
               {"invalid", cleaned->invalid},
               {"bytes_before", cleaned->bytes_before},
               {"bytes_after", cleaned->bytes_after},
               {"damage", TextOrNull(cleaned->damage)},
               {"damaged_file", TextOrNull(cleaned->damaged)}});
}

}  // namespace

Result<std::string> Engine::Perfdb(std::string_view command, std::string_view arguments_text) {
  const auto arguments = nlohmann::json::parse(arguments_text, nullptr, false);
  if (!arguments.is_object()) return Status(StatusCode::kConfig, {"arguments", "an object", "other JSON", {}});
  const std::string given = TextOf(arguments, "path"), own = RecordPaths().database;
  const Database database(given.empty() ? own : given);
  if (command == "state") return PerfdbState();
  if (command == "queue") return Queue(arguments.value("document", ""), own);
  if (command == "flush") {
    perfdb::Writer* const writer = writer_.load();
    if (writer) writer->Flush(arguments.value("seconds", 30.0));
    return Dump(QueueJson(writer ? writer->counts() : perfdb::Writer::Counts()));
  }
  if (command == "read") {
    auto contents = database.Read();
    if (!contents.ok()) return contents.TakeStatus();
    return perfdb::WriteRecords(contents->records);
  }
  if (command == "vacuum") return Vacuum(database);
  if (command != "write") return Status(StatusCode::kConfig, {"command", "one of perfdb", std::string(command), {}});
  auto how = HowOf(TextOf(arguments, "how"));
  if (!how.ok()) return how.TakeStatus();
  auto records = Given(arguments);
  if (!records.ok()) return records.TakeStatus();
  auto counts = database.Write(*records, *how);
  if (!counts.ok()) return counts.TakeStatus();
  return Dump(CountsJson(*counts));
}

Result<std::string> Engine::Queue(const std::string& document, const std::string& path) {
  auto records = perfdb::ReadRecords(document, "records");
  if (!records.ok()) return records.TakeStatus();
  perfdb::Writer* writer = writer_.load();
  if (!writer) {
    auto* const made = new perfdb::Writer(path);  // lives as long as the process
    if (writer_.compare_exchange_strong(writer, made)) {
      writer = made;
    } else {
      delete made;  // another thread was faster
    }
  }
  writer->SetPath(path);
  const auto policy = selector_.policies().policy(0);
  if (policy.ok() && (*policy)->perfdb_enabled) {
    for (perfdb::Record& record : *records) writer->Add(std::move(record));
  }
  return Dump(QueueJson(writer->counts()));
}

// What is known without a look at the disk.
std::string Engine::PerfdbState() const {
  std::string why;
  const std::string library = Database::Library(&why);
  const auto found = machine_.load()->found();
  const perfdb::Writer* const writer = writer_.load();
  return Dump({{"path", RecordPaths().database},
               {"sqlite", TextOrNull(library)},
               {"why_no_sqlite", TextOrNull(why)},
               {"journal", TextOrNull(found->journal)},
               {"rows", found->database.size()},
               {"bytes", found->bytes},
               {"problem", TextOrNull(found->problem)},
               {"queue", QueueJson(writer ? writer->counts() : perfdb::Writer::Counts())}});
}

}  // namespace lz
