#include "perfdb/writer.h"

#include <chrono>
#include <csignal>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

namespace lz::perfdb {

void StartThread(void (*run)(void*), void* argument) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  std::thread(run, argument).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Status Writer::WriteToDatabase(const std::string& path, std::span<const Record> records) {
  auto counts = Database(path).Write(records, How::kReplace);
  return counts.ok() ? Status() : counts.TakeStatus();
}

void Writer::Add(Record record) {
  bool start = false;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(record));
    ++counts_.added;
    if (queue_.size() > kCapacity) {
      queue_.pop_front();
      ++counts_.dropped;
    }
    start = !std::exchange(started_, true);
  }
  if (start) StartThread([](void* self) { static_cast<Writer*>(self)->Work(); }, this);
  added_.notify_one();
}

void Writer::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    added_.wait(lock, [this] { return !queue_.empty(); });
    std::vector<Record> batch(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.end()));
    queue_.clear();
    writing_ = int64_t(batch.size());
    const std::string path = path_;
    lock.unlock();
    const Status status = sink_(path, batch);
    lock.lock();
    (status.ok() ? counts_.written : counts_.failed) += writing_;
    counts_.problem = status.ok() ? "" : status.Text();
    writing_ = 0;
    settled_.notify_all();
  }
}

bool Writer::Flush(double seconds) {
  std::unique_lock lock(mutex_);
  const int64_t until = counts_.added;
  return settled_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return counts_.written + counts_.failed + counts_.dropped >= until; });
}

void Writer::SetPath(std::string path) {
  std::lock_guard lock(mutex_);
  path_ = std::move(path);
}

Writer::Counts Writer::counts() const {
  std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.waiting = int64_t(queue_.size()) + writing_;
  return counts;
}

}  // namespace lz::perfdb
