// Keys and checksums of records: bytes that are made from typed columns, one way for all of them.
//
// A column is its name, a letter for its type, then the value with its length, so that no two different lists of
// columns have equal bytes. Columns without a value are left out: a column that a later version adds changes no key.
#pragma once

#include <array>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "perfdb/record.h"

namespace lz::perfdb {

std::string KeyOf(const Record& record);       // what was measured, the kernel's build, the run
std::string IdentityOf(const Record& record);  // what was measured alone
std::string RunOf(const Record& record);       // protocol, timer, device, driver, runtime, torch, environment

using Checksum = std::array<uint8_t, 16>;
Checksum ChecksumOf(const Record& record);  // of every column

// Empty, or the first column whose value the format does not allow.
std::string_view InvalidColumn(const Record& record);

// True if the record was measured with a build that changes from day to day ("2.14.0.dev20260131") more than
// kNightlyDays before `now`.
inline constexpr int kNightlyDays = 14;
bool IsExpired(const Record& record, std::time_t now);

// True if the device was not as it usually is: hot, throttled, short of memory or at work for others.
bool IsUnusualEnvironment(const Record& record);

}  // namespace lz::perfdb
