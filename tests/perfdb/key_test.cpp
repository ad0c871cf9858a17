// Keys: every field of the table that belongs to a key changes it, no other does, and every field is in the checksum.
#include "perfdb/key.h"

#include <gtest/gtest.h>

#include <set>

#include "perfdb/columns.h"
#include "rows.h"

namespace lz::perfdb {
namespace {

void Change(std::string* value) { *value += "x"; }
void Change(int64_t* value) { *value += 1; }
void Change(double* value) { *value += 1; }
void Change(bool* value) { *value = !*value; }
template <class T>
void Change(std::map<std::string, T>* value) {
  Change(&value->begin()->second);
}
template <class T>
void Change(std::optional<T>* value) {
  *value ? Change(&**value) : static_cast<void>(value->emplace());
}

struct Changed {
  std::string column;
  Role role;
  Record record;
};

// The record with each of its columns changed, one at a time.
std::vector<Changed> EachChanged(const Record& from) {
  std::vector<Changed> all;
  Columns(from, [&](std::string_view name, const auto&, const Limits& limits) {
    Record r = from;
    Columns(r, [&](std::string_view other, auto& member, const Limits&) {
      if (other == name) Change(&member);
    });
    all.push_back({std::string(name), limits.role, std::move(r)});
  });
  return all;
}

TEST(Key, EveryFieldOfTheKeyChangesIt) {
  const Record record = Row(4);
  std::set<std::string> keys{KeyOf(record)};
  size_t of_key = 0;
  for (const Changed& c : EachChanged(record)) {
    if (c.role == Role::kValue) {
      EXPECT_EQ(KeyOf(c.record), KeyOf(record)) << c.column;
      continue;
    }
    ++of_key;
    EXPECT_TRUE(keys.insert(KeyOf(c.record)).second) << c.column;
    EXPECT_EQ(IdentityOf(c.record) != IdentityOf(record), c.role == Role::kIdentity) << c.column;
    EXPECT_EQ(RunOf(c.record) != RunOf(record), c.role == Role::kRun) << c.column;
  }
  EXPECT_EQ(of_key, 33u);  // a new column must be given a role with thought
}

TEST(Key, EveryFieldChangesTheChecksum) {
  const Record record = Row(4);
  std::set<Checksum> sums{ChecksumOf(record)};
  for (const Changed& c : EachChanged(record)) EXPECT_TRUE(sums.insert(ChecksumOf(c.record)).second) << c.column;
}

// What a text without lengths would confuse.
TEST(Key, ValuesDoNotRunIntoEachOther) {
  Record a = Row(4), b = Row(4);
  a.options = {{"a", "b"}, {"c", "d"}};
  b.options = {{"a", "bc"}, {"d", ""}};
  EXPECT_NE(KeyOf(a), KeyOf(b));
  a = b = Row(4);
  a.kernel_id = "ab", a.operation = "c";
  b.kernel_id = "a", b.operation = "bc";
  EXPECT_NE(KeyOf(a), KeyOf(b));
  a = b = Row(4);
  a.driver_version = "1";
  b.cuda_version = "1";
  EXPECT_NE(KeyOf(a), KeyOf(b));
  a = b = Row(4);
  a.is_causal = false;  // not unknown
  EXPECT_NE(KeyOf(a), KeyOf(b));
}

TEST(Key, ValuesThatTheFormatDoesNotAllowAreNamed) {
  EXPECT_EQ(InvalidColumn(Row(4)), "");
  for (const auto& [column, change] : std::map<std::string, void (*)(Record&)>{
           {"kernel_id", [](Record& r) { r.kernel_id = ""; }},
           {"dtype", [](Record& r) { r.dtype = "float33"; }},
           {"axes", [](Record& r) { r.axes["hidden"] = -1; }},
           {"cache_state", [](Record& r) { r.cache_state = "hot"; }},
           {"median_us", [](Record& r) { r.median_us = 0; }},
           {"p95_us", [](Record& r) { r.p95_us = r.median_us / 2; }},
           {"variance_us", [](Record& r) { r.variance_us = std::numeric_limits<double>::quiet_NaN(); }},
           {"measured_at", [](Record& r) { r.measured_at = "yesterday"; }}}) {
    Record r = Row(4);
    change(r);
    EXPECT_EQ(InvalidColumn(r), column);
  }
}

TEST(Key, RecordsOfNightlyBuildsExpire) {
  const std::time_t at = 1769860800;  // 2026-01-31T12:00:00Z
  constexpr std::time_t kDay = 24 * 3600;
  Record r = Row(4);
  EXPECT_FALSE(IsExpired(r, at + 1000 * kDay));
  r.torch_version = "2.14.0.dev20260131+cu130";
  EXPECT_FALSE(IsExpired(r, at + (kNightlyDays - 1) * kDay));
  EXPECT_TRUE(IsExpired(r, at + (kNightlyDays + 1) * kDay));
  r = Row(4);
  r.backend_version = "0.7.0.dev3";
  EXPECT_TRUE(IsExpired(r, at + (kNightlyDays + 1) * kDay));
}

}  // namespace
}  // namespace lz::perfdb
