#include "engine/measured.h"

#include <chrono>
#include <utility>

#include "base/trusted_file.h"
#include "perfdb/database.h"
#include "perfdb/writer.h"

namespace lz {
namespace {

MeasuredRecords::Found Read(const MeasuredRecords::Paths& paths) {
  MeasuredRecords::Found found;
  std::string why;
  if (!paths.database.empty() && !perfdb::Database::Library(&why).empty()) {
    auto contents = perfdb::Database(paths.database).Read();
    if (contents.ok()) {
      found.database = std::move(contents->records);
      found.journal = std::move(contents->journal);
      found.bytes = contents->bytes;
    } else {
      found.problem = contents.status().Text();
    }
  }
  constexpr size_t kMostBytes = size_t{16} << 20;  // the reader refuses more
  auto text = ReadTrustedFile(paths.file, kMostBytes);
  if (!text.ok() && found.problem.empty()) found.problem = text.status().Text();
  if (text.ok() && *text) {
    auto records = perfdb::ReadRecords(**text, paths.file);
    if (records.ok()) {
      found.file = std::move(*records);
    } else if (found.problem.empty()) {
      found.problem = records.status().Text();
    }
  }
  return found;
}

}  // namespace

void MeasuredRecords::Begin(Paths paths, void (*late)()) {
  std::unique_lock lock(mutex_);
  if (!std::exchange(begun_, true)) {
    paths_ = std::move(paths);
    late_ = late;
    reading_.store(true, std::memory_order_release);
    struct Job {
      MeasuredRecords* to;
      Paths paths;
    };
    perfdb::StartThread(
        [](void* given) {
          const std::unique_ptr<Job> job(static_cast<Job*>(given));
          job->to->Keep(Read(job->paths), job->paths);
        },
        new Job{this, paths_});
  }
  waited_ = !done_.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [this] { return finished_; }) || waited_;
}

void MeasuredRecords::Keep(Found found, const Paths& paths) {
  bool late;
  {
    std::lock_guard lock(mutex_);
    if (paths != paths_) return;  // they were forgotten, or others were read meanwhile
    found_ = std::make_shared<const Found>(std::move(found));
    finished_ = true;
    late = waited_;
  }
  reading_.store(false, std::memory_order_release);
  done_.notify_all();
  if (late) late_();
}

void MeasuredRecords::ReadNow(const Paths& paths) {
  Found found = Read(paths);
  std::lock_guard lock(mutex_);
  found_ = std::make_shared<const Found>(std::move(found));
  paths_ = paths;
  begun_ = finished_ = true;
  done_.notify_all();
}

bool MeasuredRecords::IsOf(const Paths& paths) const {
  std::lock_guard lock(mutex_);
  return !begun_ || paths_ == paths;
}

void MeasuredRecords::Forget() {
  std::lock_guard lock(mutex_);
  found_ = std::make_shared<const Found>();
  paths_ = {};
  begun_ = finished_ = waited_ = false;
}

std::shared_ptr<const MeasuredRecords::Found> MeasuredRecords::found() const {
  std::lock_guard lock(mutex_);
  return found_;
}

}  // namespace lz
