#include "perfdb/key.h"

#include <sodium.h>

#include <cmath>
#include <cstring>

#include "perfdb/columns.h"

namespace lz::perfdb {
namespace {

template <class T>
void AppendBytes(std::string* to, const T& value) {
  static_assert(std::endian::native == std::endian::little);
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void AppendText(std::string* to, std::string_view text) {
  AppendBytes(to, uint32_t(text.size()));
  to->append(text);
}

void Append(std::string* to, std::string_view name, const std::string& value) {
  AppendText(to, name);
  to->push_back('s');
  AppendText(to, value);
}
void Append(std::string* to, std::string_view name, int64_t value) {
  AppendText(to, name);
  to->push_back('i');
  AppendBytes(to, value);
}
void Append(std::string* to, std::string_view name, double value) {
  AppendText(to, name);
  to->push_back('d');
  AppendBytes(to, value);
}
void Append(std::string* to, std::string_view name, bool value) {
  AppendText(to, name);
  to->push_back('b');
  to->push_back(char(value));
}
template <class T>
void Append(std::string* to, std::string_view name, const std::map<std::string, T>& value) {
  AppendText(to, name);
  to->push_back('m');
  AppendBytes(to, uint32_t(value.size()));
  for (const auto& [key, one] : value) Append(to, key, one);
}
template <class T>
void Append(std::string* to, std::string_view name, const std::optional<T>& value) {
  if (value) Append(to, name, *value);
}

template <class Wanted>
std::string Encode(const Record& record, Wanted&& wanted) {
  std::string bytes;
  Columns(record, [&](std::string_view name, const auto& member, const Limits& limits) {
    if (wanted(limits.role)) Append(&bytes, name, member);
  });
  return bytes;
}

bool IsValid(const std::string& value, const Limits& limits) {
  return !value.empty() && value.size() <= kMaxText && (limits.choices.empty() || IsChoice(limits.choices, value)) &&
         (!limits.fits || limits.fits(value));
}
bool IsValid(int64_t value, const Limits& limits) { return value >= int64_t(limits.least) && value <= kMaxNumber; }
bool IsValid(double value, const Limits& limits) { return std::isfinite(value) && value >= limits.least; }
bool IsValid(bool, const Limits&) { return true; }
template <class T>
bool IsValid(const std::map<std::string, T>& value, const Limits&) {
  return value.size() <= kMaxNames && std::ranges::all_of(value, [](const auto& one) {
           return IsValid(one.first, Limits{}) && IsValid(one.second, Limits{});
         });
}
template <class T>
bool IsValid(const std::optional<T>& value, const Limits& limits) {
  return !value || IsValid(*value, limits);
}

bool IsNightly(std::string_view version) {
  return version.find(".dev") != version.npos || version.find("nightly") != version.npos;
}

}  // namespace

std::string KeyOf(const Record& record) {
  return Encode(record, [](Role role) { return role != Role::kValue; });
}
std::string IdentityOf(const Record& record) {
  return Encode(record, [](Role role) { return role == Role::kIdentity; });
}
std::string RunOf(const Record& record) {
  return Encode(record, [](Role role) { return role == Role::kRun; });
}

Checksum ChecksumOf(const Record& record) {
  const std::string bytes = Encode(record, [](Role) { return true; });
  Checksum sum{};
  crypto_generichash(sum.data(), sum.size(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                     nullptr, 0);
  return sum;
}

std::string_view InvalidColumn(const Record& record) {
  std::string_view first;
  Columns(record, [&](std::string_view name, const auto& member, const Limits& limits) {
    if (first.empty() && !IsValid(member, limits)) first = name;
  });
  return first.empty() && record.p95_us < record.median_us ? "p95_us" : first;
}

bool IsExpired(const Record& record, std::time_t now) {
  const bool nightly = IsNightly(record.torch_version.value_or("")) || IsNightly(record.backend_version.value_or("")) ||
                       IsNightly(record.layerzero_version);
  if (!nightly) return false;
  const std::time_t oldest = now - std::time_t{kNightlyDays} * 24 * 3600;
  std::tm utc{};
  char text[32];
  if (!gmtime_r(&oldest, &utc) || !std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc)) return true;
  return record.measured_at < text;  // one form, so that the order of texts is that of times
}

bool IsUnusualEnvironment(const Record& record) {
  return record.temperature == "hot" || record.memory_pressure == "high" || record.power_state == "throttled" ||
         record.concurrent_work == true;
}

}  // namespace lz::perfdb
