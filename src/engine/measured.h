// The records that the machine's owner has measured: those of the performance database, then those of the file that a
// machine without SQLite has. Read on a thread of its own, so that no operation waits for a disk or a lock: a first
// selection waits for a moment, as long as a healthy file takes, and is else made without them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "perfdb/record.h"

namespace lz {

class MeasuredRecords {
 public:
  static constexpr int kPatienceMs = 50;  // of the first selection

  struct Paths {
    std::string database, file;  // empty: none
    bool operator==(const Paths&) const = default;
  };
  struct Found {
    std::vector<perfdb::Record> database, file;
    std::string journal;  // of the database; empty: there is none
    int64_t bytes = 0;
    std::string problem;  // empty: none
  };

  // Starts to read unless that was done. `late`: called on the reading thread if the wait was too short.
  void Begin(Paths paths, void (*late)());
  // Reads on this thread, which may wait for locks.
  void ReadNow(const Paths& paths);
  bool IsOf(const Paths& paths) const;         // true too before the first Begin
  void Forget();                               // what was read; the next Begin reads again
  std::shared_ptr<const Found> found() const;  // never null
  // True in a child that was forked while a thread of its parent was reading.
  bool IsReading() const { return reading_.load(std::memory_order_acquire); }

 private:
  void Keep(Found found, const Paths& paths);

  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::shared_ptr<const Found> found_ = std::make_shared<Found>();
  Paths paths_;
  void (*late_)() = nullptr;
  bool begun_ = false, finished_ = false, waited_ = false;
  std::atomic<bool> reading_{false};
};

}  // namespace lz
