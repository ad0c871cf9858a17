// Calls a function periodically on a thread of its own: a time to live without a clock on the hot path.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace lz {

class Ticker {
 public:
  ~Ticker() { Stop(); }

  // 0 stops it. Replaces an earlier period.
  void Start(double seconds, std::function<void()> tick) {
    Stop();
    if (seconds <= 0) return;
    stop_ = false;
    thread_ = std::thread([this, seconds, tick = std::move(tick)] {
      std::unique_lock lock(mutex_);
      while (!wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stop_; })) tick();
    });
  }
  void Stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
  bool stop_ = false;
};

}  // namespace lz
