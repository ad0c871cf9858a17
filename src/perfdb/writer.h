// Records on their way into the database: a bounded queue and the thread that empties it. Add() takes a lock for the
// time of a push and never waits for the disk, so it may be called where an operation is served.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "perfdb/database.h"

namespace lz::perfdb {

class Writer {
 public:
  static constexpr size_t kCapacity = 1024;  // records; the oldest make room for new ones

  // Called on a thread that may wait; a failed write loses its records, which are counted.
  using Sink = Status (*)(const std::string& path, std::span<const Record> records);
  explicit Writer(std::string path, Sink sink = &WriteToDatabase) : path_(std::move(path)), sink_(sink) {}
  // A Writer lives as long as its process: its thread is not joined.
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void Add(Record record);
  // Waits until what was added before is written, or lost; false after `seconds`.
  bool Flush(double seconds);
  void SetPath(std::string path);  // of the records that are not yet being written

  struct Counts {
    int64_t added = 0, written = 0, dropped = 0, failed = 0;
    int64_t waiting = 0;
    std::string problem;  // of the last write; empty: it succeeded
  };
  Counts counts() const;

 private:
  static Status WriteToDatabase(const std::string& path, std::span<const Record> records);
  void Work();

  mutable std::mutex mutex_;
  std::condition_variable added_, settled_;
  std::string path_;
  Sink sink_;
  std::deque<Record> queue_;
  Counts counts_;
  int64_t writing_ = 0;
  bool started_ = false;
};

// A thread that takes no signals, which stay with the threads of the program. It is not joined.
void StartThread(void (*run)(void*), void* argument);

}  // namespace lz::perfdb
