// Quarantine: kernels that are known to be wrong, to crash or to lose the device for some calls, as rows of data. The
// rows that the library carries (known_wrong.json) and those that this machine has learned (quarantine.json in the
// cache folder) have one format:
//   {"kernel": "torch.sdpa.mem_efficient", "operation": "attention.*", "when": [{"field": "key.broadcast",
//    "relation": "==", "value": 1}], "outcome": "wrong", "detail": "..."}
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/reason.h"
#include "core/status.h"
#include "health/outcome.h"

namespace lz {

// A condition on a field of the call, as Constraint has them.
struct CallCondition {
  std::string field;
  Rel rel = Rel::kEq;
  int64_t operand = 0;
  auto operator<=>(const CallCondition&) const = default;
};

// From `min` on, below `below`; empty: no limit. "2.13.0+cpu" is compared by its numbers.
struct VersionRange {
  std::string min, below;
  bool Holds(std::string_view version) const;
  auto operator<=>(const VersionRange&) const = default;
};

struct QuarantineRow {
  std::string kernel;               // an id; globs
  std::string operation;            // its id; globs
  std::vector<CallCondition> when;  // the class of calls: all hold. Empty: every call
  // Where the row holds; what is empty holds everywhere.
  std::string device;   // as measured records name it
  std::string version;  // of the kernel: see KernelVersion
  std::string driver;
  VersionRange library_versions, driver_versions;
  Outcome outcome = Outcome::kWrong;
  std::string detail;
  std::string origin;  // "known_wrong.json", or the file of the machine
  int64_t since = 0;   // seconds of the Unix epoch
  int64_t until = 0;   // 0: as long as the versions hold
  int strikes = 1;     // how often it was seen

  // `now` in seconds of the Unix epoch. A clock that was set back by more than an hour ends the row too: it would
  // otherwise hold for longer than was meant, and a kernel that fails again is learned again.
  bool HasEnded(int64_t now) const { return until != 0 && (until <= now || now < since - 3600); }
  // True if both are about the same calls of the same kernel on the same device, whatever the version.
  bool IsSame(const QuarantineRow& other) const;
};

nlohmann::json RowToJson(const QuarantineRow& row);
// `what`: the name of the file in messages. Refuses unknown keys, relations and outcomes.
Result<std::vector<QuarantineRow>> ReadQuarantine(std::string_view text, const std::string& what);
// Adds a row to those of the machine: one that is there already has one strike more. Returns the row as it is now.
const QuarantineRow& AddTo(std::vector<QuarantineRow>* rows, QuarantineRow row);

// The file of the machine. Processes change it one after another, under a lock next to it, and replace it as a whole.
class QuarantineFile {
 public:
  explicit QuarantineFile(std::string folder) : folder_(std::move(folder)) {}
  std::string path() const { return folder_ + "/quarantine.json"; }
  // The rows of the file; none if it does not exist.
  Result<std::vector<QuarantineRow>> Read() const;
  // Reads, changes, writes. `change` gets the rows that the file has now.
  template <class Change>
  Status Update(Change&& change) const {
    const Lock lock(folder_);
    auto rows = Read();
    if (!rows.ok()) rows = std::vector<QuarantineRow>();  // a damaged file is replaced
    change(&*rows);
    return Write(*rows);
  }

 private:
  struct Lock {
    explicit Lock(const std::string& folder);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    int file = -1;
  };
  Status Write(const std::vector<QuarantineRow>& rows) const;
  std::string folder_;
};

}  // namespace lz
