#include "perfdb/database.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "perfdb/columns.h"
#include "perfdb/key.h"
#include "perfdb/session.h"

namespace lz::perfdb {
namespace {

// ---- rows: a record is its columns, after which come the key and the checksum

std::string ColumnList() {
  std::string list;
  const Record any;
  Columns(any, [&](std::string_view name, const auto&, const Limits&) { list.append(name).append(", "); });
  return list + "key, checksum";
}
int NumColumns() {
  int count = 0;
  const Record any;
  Columns(any, [&](std::string_view, const auto&, const Limits&) { ++count; });
  return count;
}

template <class T>
void Put(Statement& s, int i, const T& value) {
  s.Bind(i, value);
}
template <class T>
void Put(Statement& s, int i, const std::map<std::string, T>& value) {
  s.Bind(i, nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}
template <class T>
void Put(Statement& s, int i, const std::optional<T>& value) {
  value ? Put(s, i, *value) : s.BindNull(i);
}

// False: the value has another type.
bool Take(const Statement& s, int i, std::string* out) {
  *out = s.Text(i);
  return s.Type(i) == kSqliteText;
}
bool Take(const Statement& s, int i, int64_t* out) {
  *out = s.Int(i);
  return s.Type(i) == kSqliteInteger;
}
bool Take(const Statement& s, int i, bool* out) {
  *out = s.Int(i) != 0;
  return s.Type(i) == kSqliteInteger;
}
bool Take(const Statement& s, int i, double* out) {
  *out = s.Double(i);
  return s.Type(i) == kSqliteFloat;
}
template <class T>
bool Take(const Statement& s, int i, std::map<std::string, T>* out) {
  const auto value = nlohmann::json::parse(s.Text(i), nullptr, false);
  if (!value.is_object()) return false;
  for (const auto& [name, one] : value.items()) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (!one.is_string()) return false;
    } else if (!one.is_number_integer()) {
      return false;
    }
    (*out)[name] = one.template get<T>();
  }
  return true;
}
template <class T>
bool Take(const Statement& s, int i, std::optional<T>* out) {
  return s.IsNull(i) || Take(s, i, &out->emplace());
}

struct Row {
  Record record;
  Checksum checksum{};
};

Checksum ToChecksum(const std::string& bytes) {
  Checksum sum{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), sum.size()), sum.begin());
  return sum;
}
std::string_view Bytes(const Checksum& sum) { return {reinterpret_cast<const char*>(sum.data()), sum.size()}; }

std::optional<Row> ReadRow(const Statement& s) {
  Row row;
  int i = 0;
  bool right = true;
  Columns(row.record, [&](std::string_view, auto& member, const Limits&) { right = Take(s, i++, &member) && right; });
  const std::string key = s.Blob(i), sum = s.Blob(i + 1);
  row.checksum = ChecksumOf(row.record);
  const bool intact = right && sum == Bytes(row.checksum) && key == KeyOf(row.record);
  return intact && InvalidColumn(row.record).empty() ? std::optional(std::move(row)) : std::nullopt;
}

void Mix(Checksum* digest, const Checksum& sum) {
  for (size_t i = 0; i < sum.size(); ++i) (*digest)[i] ^= sum[i];
}

// ---- the whole table

struct Table {
  std::vector<Row> rows;
  std::string damage;  // empty: all rows are here and as they were written
};

// In one transaction. An error of SQLite is in *failed; the rows before it are returned.
Table ReadTable(Session& session, Status* failed) {
  Table table;
  Connection& db = session.connection();
  const auto note = [&] {
    *failed = session.Failed();
    table.damage = failed->parts().got;
  };
  if (!db.Run("BEGIN")) {
    note();
    return table;
  }
  int64_t rows = -1;
  Checksum wanted{}, digest{};
  {
    auto state = db.First("SELECT rows, digest FROM state");
    if (state) rows = state->Int(0), wanted = ToChecksum(state->Blob(1));
    if (!state && db.error() != kSqliteOk) note();  // what can be read is still read
  }
  {
    auto all = db.Prepare("SELECT " + ColumnList() + " FROM records");
    if (!all) {
      note();
      return table;
    }
    int step;
    while ((step = all->Step()) == kSqliteRow) {
      auto row = ReadRow(*all);
      if (!row) {
        table.damage = "a row that does not match its checksum";
        continue;
      }
      Mix(&digest, row->checksum);
      table.rows.push_back(std::move(*row));
    }
    if (!db.Done(step)) note();
  }
  db.Run("COMMIT");
  if (failed->ok() && table.damage.empty() && (rows != int64_t(table.rows.size()) || digest != wanted)) {
    table.damage = std::to_string(table.rows.size()) + " rows where " + std::to_string(rows) + " were written";
  }
  return table;
}

// ---- writing, inside a transaction

// Keeps the table's state up to date with its rows. A function that returns false has left the error in the connection.
class TableWriter {
 public:
  explicit TableWriter(Connection& db) : db_(db) {}

  bool Begin() {
    auto state = db_.First("SELECT rows, digest FROM state");
    if (!state) return false;
    rows_ = state->Int(0);
    digest_ = ToChecksum(state->Blob(1));
    find_ = db_.Prepare("SELECT checksum, measured_at FROM records WHERE key = ?");
    insert_ = db_.Prepare("INSERT OR REPLACE INTO records(" + ColumnList() + ") VALUES(" + Marks() + ")");
    remove_ = db_.Prepare("DELETE FROM records WHERE key = ?");
    return find_ && insert_ && remove_;
  }

  bool Add(const Record& record, How how, Database::Counts* counts) {
    const std::string key = KeyOf(record);
    const Checksum sum = ChecksumOf(record);
    find_->BindBlob(0, key);
    const int found = find_->Step();
    const std::string old = found == kSqliteRow ? find_->Blob(0) : "";
    const bool newer = found == kSqliteRow && record.measured_at > find_->Text(1);
    find_->Reset();
    if (found != kSqliteRow && !db_.Done(found)) return false;
    if (old == Bytes(sum) || (!old.empty() && how == How::kNewer && !newer)) {
      ++counts->unchanged;
      return true;
    }
    int i = 0;
    Columns(record, [&](std::string_view, const auto& member, const Limits&) { Put(*insert_, i++, member); });
    insert_->BindBlob(i, key);
    insert_->BindBlob(i + 1, Bytes(sum));
    const bool done = db_.Done(insert_->Step());
    insert_->Reset();
    if (!done) return false;
    if (old.empty()) {
      ++rows_;
      ++counts->added;
    } else {
      Mix(&digest_, ToChecksum(old));
      ++counts->replaced;
    }
    Mix(&digest_, sum);
    return true;
  }

  bool Remove(const Row& row) {
    remove_->BindBlob(0, KeyOf(row.record));
    const bool done = db_.Done(remove_->Step());
    remove_->Reset();
    --rows_;
    Mix(&digest_, row.checksum);
    return done;
  }

  bool Finish() {
    auto state = db_.Prepare("UPDATE state SET rows = ?, digest = ?");
    if (!state) return false;
    state->Bind(0, rows_);
    state->BindBlob(1, Bytes(digest_));
    return db_.Done(state->Step());
  }

 private:
  static std::string Marks() {
    std::string marks = "?, ?";
    for (int i = 0; i < NumColumns(); ++i) marks += ", ?";
    return marks;
  }

  Connection& db_;
  int64_t rows_ = 0;
  Checksum digest_{};
  std::optional<Statement> find_, insert_, remove_;
};

// Runs `change` in a transaction that is taken back if it fails.
template <class Change>
Status Transaction(Session& session, Change&& change) {
  Connection& db = session.connection();
  bool done = db.Run("BEGIN IMMEDIATE");
  if (done) {
    TableWriter writer(db);
    done = writer.Begin() && change(writer) && writer.Finish();
  }
  if (done && db.Run("COMMIT")) return {};
  Status failed = session.Failed();
  db.Run("ROLLBACK");
  return failed;
}

// Rows of the operations, devices and runs of `records` that are not among them.
std::vector<Row> Replaced(std::vector<Row> rows, std::span<const Record> records) {
  std::set<std::string> runs, keys;
  const auto run_of = [](const Record& r) { return r.operation + '\0' + r.device_id + '\0' + RunOf(r); };
  for (const Record& r : records) {
    runs.insert(run_of(r));
    keys.insert(KeyOf(r));
  }
  std::erase_if(rows,
                [&](const Row& row) { return !runs.contains(run_of(row.record)) || keys.contains(KeyOf(row.record)); });
  return rows;
}

Status WriteRows(Session& session, std::span<const Record> records, How how, const std::vector<Row>& removed,
                 Database::Counts* counts) {
  return Transaction(session, [&](TableWriter& writer) {
    *counts = {};
    for (const Row& row : removed) {
      if (!writer.Remove(row)) return false;
      ++counts->removed;
    }
    for (const Record& record : records) {
      if (!writer.Add(record, how, counts)) return false;
    }
    return true;
  });
}

int64_t FileBytes(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 ? int64_t(found.st_size) : 0;
}

std::vector<Record> RecordsOf(std::vector<Row> rows) {
  std::vector<Record> records;
  records.reserve(rows.size());
  for (Row& row : rows) records.push_back(std::move(row.record));
  return records;
}

// Renames the file and makes a new one of `records`. The lock is held until the end, so no writer has it open.
Status Rebuild(Session& session, const std::string& path, int patience_ms, std::span<const Record> records,
               std::time_t now, std::string* damaged) {
  *damaged = session.path() + ".damaged-" + std::to_string(now);
  session.Close();
  const std::string fresh = session.path() + ".new";
  std::error_code error;
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) std::filesystem::remove(fresh + suffix, error);
  LZ_RETURN_IF_ERROR(session.OpenAgain(fresh, patience_ms));
  Database::Counts counts;
  LZ_RETURN_IF_ERROR(WriteRows(session, records, How::kReplace, {}, &counts));
  session.Close();
  for (const char* suffix : {"-journal", "-wal", "-shm"}) std::filesystem::remove(path + suffix, error);
  std::filesystem::rename(path, *damaged, error);
  if (!error) std::filesystem::rename(fresh, path, error);
  if (error) return Failure(path, kSqliteIoError, error.message());
  return {};
}

}  // namespace

Result<Database::Contents> Database::Read() const {
  Contents contents;
  auto session = std::make_unique<Session>();
  LZ_RETURN_IF_ERROR(session->Open(path_, Session::Use::kRead, patience_ms_));
  if (session->is_old()) {
    session.reset();  // frees the locks
    session = std::make_unique<Session>();
    LZ_RETURN_IF_ERROR(session->Open(path_, Session::Use::kWrite, patience_ms_));
  }
  if (!session->exists()) return contents;
  Status failed;
  Table table = ReadTable(*session, &failed);
  if (!failed.ok()) return failed;
  if (!table.damage.empty()) return Damaged(session->path(), table.damage);
  contents.records = RecordsOf(std::move(table.rows));
  contents.journal = session->journal();
  contents.bytes = FileBytes(session->path());
  return contents;
}

Result<Database::Counts> Database::Write(std::span<const Record> records, How how) const {
  for (const Record& record : records) {
    if (const std::string_view column = InvalidColumn(record); !column.empty()) {
      return Status(StatusCode::kConfig, {std::string(column), "a value that records may have", "another",
                                          "see schemas/records.schema.json"});
    }
  }
  Session session;
  LZ_RETURN_IF_ERROR(session.Open(path_, Session::Use::kWrite, patience_ms_));
  std::vector<Row> removed;
  if (how == How::kReplaceRun) {
    Status failed;
    Table table = ReadTable(session, &failed);
    if (!failed.ok()) return failed;
    if (!table.damage.empty()) return Damaged(session.path(), table.damage);
    removed = Replaced(std::move(table.rows), records);
  }
  Counts counts;
  LZ_RETURN_IF_ERROR(WriteRows(session, records, how, removed, &counts));
  return counts;
}

Result<Database::Cleaned> Database::Vacuum(std::time_t now) const {
  Cleaned cleaned;
  Session session;
  Status opened = session.Open(path_, Session::Use::kWrite, patience_ms_);
  if (!opened.ok() && !session.is_damaged()) return opened;
  cleaned.bytes_before = FileBytes(session.path());
  Table table;
  Status failed;
  if (opened.ok()) table = ReadTable(session, &failed);
  if (!opened.ok()) table.damage = opened.parts().got;
  if (!failed.ok() && !session.is_damaged()) return failed;
  cleaned.damage = table.damage;
  std::vector<Row> removed;
  std::erase_if(table.rows, [&](Row& row) {
    const bool expired = IsExpired(row.record, now);
    if (!expired && row.record.valid) return false;
    ++(expired ? cleaned.expired : cleaned.invalid);
    removed.push_back(std::move(row));
    return true;
  });
  cleaned.kept = int64_t(table.rows.size());
  if (table.damage.empty()) {
    Counts counts;
    LZ_RETURN_IF_ERROR(WriteRows(session, {}, How::kReplace, removed, &counts));
    if (!session.connection().Run("VACUUM")) return session.Failed();
  } else {
    LZ_RETURN_IF_ERROR(
        Rebuild(session, session.path(), patience_ms_, RecordsOf(std::move(table.rows)), now, &cleaned.damaged));
  }
  cleaned.bytes_after = FileBytes(session.path());
  return cleaned;
}

std::string Database::Library(std::string* why) {
  const Sqlite* const api = Sqlite::Get(why);
  if (!api) return "";
  return api->version() + (IsWalSafe(api->libversion_number()) ? ", write-ahead log" : ", rollback journal");
}

}  // namespace lz::perfdb
