#include "health/breaker.h"

#include <algorithm>

namespace lz {

bool Breaker::Failed(double now, const BreakerLimits& limits) {
  ++failures_;
  passed_ = 0;
  const bool burst = recent_ == kBurst && now - times_[size_t(next_)] <= kBurstSeconds;
  times_[size_t(next_)] = now;
  next_ = (next_ + 1) % kBurst;
  recent_ = std::min(recent_ + 1, kBurst);
  const BreakerState before = state(now);
  if (before == BreakerState::kOpen) return false;  // a call that began before it opened
  if (before == BreakerState::kClosed && failures_ < limits.failures && !burst) return false;
  // One that opens again soon after a trial has closed it is the same trouble: its times go on from there.
  const bool same = open_ || (retry_s_ > 0 && now - closed_at_ <= 2 * retry_s_);
  retry_s_ = same ? std::min(2 * retry_s_, limits.max_retry_s) : limits.retry_s;
  retry_at_ = now + retry_s_;
  trial_until_ = 0;
  open_ = true;
  return true;
}

bool Breaker::Passed(double now) {
  failures_ = 0;
  if (++passed_ >= kCalm) recent_ = 0;
  if (state(now) != BreakerState::kHalfOpen) return false;
  open_ = false;
  trial_until_ = 0;
  recent_ = 0;
  closed_at_ = now;
  return true;
}

bool Breaker::ClaimTrial(double now) {
  if (state(now) != BreakerState::kHalfOpen || trial_taken(now)) return false;
  trial_until_ = now + kTrialSeconds;
  return true;
}

}  // namespace lz
