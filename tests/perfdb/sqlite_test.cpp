// SQLite's functions as they are declared here and in its own header, and which versions may have a write-ahead log.
#include "perfdb/sqlite.h"

#include <gtest/gtest.h>

#if __has_include(<sqlite3.h>)
#include <sqlite3.h>

#include <type_traits>

namespace lz::perfdb {
namespace {

#define LZ_SAME(name) static_assert(std::is_same_v<decltype(Sqlite::name), decltype(&sqlite3_##name)>)
LZ_SAME(libversion_number);
LZ_SAME(open_v2);
LZ_SAME(close_v2);
LZ_SAME(extended_errcode);
LZ_SAME(errmsg);
LZ_SAME(busy_timeout);
LZ_SAME(db_config);
LZ_SAME(prepare_v2);
LZ_SAME(step);
LZ_SAME(reset);
LZ_SAME(finalize);
LZ_SAME(bind_blob);
LZ_SAME(bind_double);
LZ_SAME(bind_int64);
LZ_SAME(bind_null);
LZ_SAME(bind_text);
LZ_SAME(column_blob);
LZ_SAME(column_bytes);
LZ_SAME(column_double);
LZ_SAME(column_int64);
LZ_SAME(column_text);
LZ_SAME(column_type);

static_assert(kSqliteOk == SQLITE_OK && kSqliteError == SQLITE_ERROR && kSqlitePermission == SQLITE_PERM &&
              kSqliteBusy == SQLITE_BUSY && kSqliteReadOnly == SQLITE_READONLY && kSqliteIoError == SQLITE_IOERR &&
              kSqliteCorrupt == SQLITE_CORRUPT && kSqliteFull == SQLITE_FULL && kSqliteCantOpen == SQLITE_CANTOPEN &&
              kSqliteAuth == SQLITE_AUTH && kSqliteNotADatabase == SQLITE_NOTADB && kSqliteRow == SQLITE_ROW &&
              kSqliteDone == SQLITE_DONE);
static_assert(kSqliteOpenReadOnly == SQLITE_OPEN_READONLY && kSqliteOpenReadWrite == SQLITE_OPEN_READWRITE &&
              kSqliteOpenNoMutex == SQLITE_OPEN_NOMUTEX && kSqliteOpenNoFollow == SQLITE_OPEN_NOFOLLOW &&
              kSqliteConfigDefensive == SQLITE_DBCONFIG_DEFENSIVE &&
              kSqliteConfigTrustedSchema == SQLITE_DBCONFIG_TRUSTED_SCHEMA);
static_assert(kSqliteInteger == SQLITE_INTEGER && kSqliteFloat == SQLITE_FLOAT && kSqliteText == SQLITE_TEXT &&
              kSqliteBlob == SQLITE_BLOB && kSqliteNull == SQLITE_NULL);

}  // namespace
}  // namespace lz::perfdb
#endif

namespace lz::perfdb {
namespace {

TEST(Sqlite, AWriteAheadLogNeedsAVersionWithoutTheFault) {
  for (const int safe : {3044006, 3044009, 3050007, 3051003, 3053004, 4000000}) EXPECT_TRUE(IsWalSafe(safe)) << safe;
  for (const int faulty : {3007000, 3040001, 3044005, 3045000, 3046001, 3050006, 3051000, 3051002}) {
    EXPECT_FALSE(IsWalSafe(faulty)) << faulty;
  }
}

}  // namespace
}  // namespace lz::perfdb
