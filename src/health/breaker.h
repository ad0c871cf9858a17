// The circuit breaker of one kernel on one device: a kernel that keeps failing is not selected for a while, then one
// call tries it. A value without a clock: the caller passes the time in seconds.
//
//            failures            retry is due            the trial passes
//   closed ------------> open ------------> half open ------------------> closed
//                         ^                     |
//                         +--- the trial fails: twice the time -----------+
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lz {

struct BreakerLimits {
  int failures = 3;           // in a row, or kBurst of them within kBurstSeconds
  double retry_s = 30;        // until the first trial; doubled after each one that fails
  double max_retry_s = 3600;  // the longest time between two trials
};

enum class BreakerState : uint8_t { kClosed, kOpen, kHalfOpen };
inline constexpr std::array<std::string_view, 3> kBreakerStateNames = {"closed", "open", "half_open"};

class Breaker {
 public:
  static constexpr int kBurst = 10;
  static constexpr double kBurstSeconds = 60;
  static constexpr double kTrialSeconds = 60;  // a trial that has not ended by then is given to another call
  static constexpr uint64_t kCalm = 1000;      // runs in a row without a failure after which failures are forgotten

  // Return true if the state changed.
  bool Failed(double now, const BreakerLimits& limits);
  bool Passed(double now);

  BreakerState state(double now) const {
    return !open_ ? BreakerState::kClosed : now < retry_at_ ? BreakerState::kOpen : BreakerState::kHalfOpen;
  }
  // True for one caller of each trial.
  bool ClaimTrial(double now);
  bool trial_taken(double now) const { return trial_until_ > now; }
  // Failures are not forgotten yet: successes have to be reported too.
  bool counts() const { return open_ || failures_ > 0 || recent_ > 0; }
  int failures_in_a_row() const { return failures_; }
  double retry_at() const { return retry_at_; }
  double retry_s() const { return retry_s_; }

 private:
  bool open_ = false;
  int failures_ = 0;                       // in a row
  int recent_ = 0;                         // entries of times_
  std::array<double, kBurst> times_ = {};  // of the last failures, a ring
  int next_ = 0;
  uint64_t passed_ = 0;  // in a row
  double retry_s_ = 0, retry_at_ = 0, trial_until_ = 0, closed_at_ = 0;
};

}  // namespace lz
