#include "pipeline/request_memory.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "core/limits.h"
#include "core/tensor.h"

namespace lz {
namespace {

bool IsEmpty(const lz_tensor& t) { return std::count(t.shape, t.shape + t.ndim, 0) > 0; }

// Bytes from the first to one past the last.
struct Extent {
  int64_t begin, end;
};
// For a tensor that is not empty; nullopt: it exceeds any address space.
std::optional<Extent> ExtentOf(const lz_tensor& t) {
  Extent e{int64_t(reinterpret_cast<uintptr_t>(t.data) + t.byte_offset), 0};
  bool beyond = __builtin_add_overflow(e.begin, ItemSize(t), &e.end);
  for (int32_t d = 0; d < t.ndim; ++d) {
    int64_t way = 0;
    beyond = beyond || __builtin_mul_overflow(t.shape[d] - 1, t.strides[d], &way) ||
             __builtin_mul_overflow(way, ItemSize(t), &way);
    int64_t& end = way < 0 ? e.begin : e.end;
    beyond = beyond || __builtin_add_overflow(end, way, &end);
  }
  if (beyond || e.begin < 0 || e.end > INT64_MAX / 2) return std::nullopt;
  return e;
}

// Sums of steps, each taken as often as its range allows. One byte is also a step.
class Steps {
 public:
  void Add(int64_t size, int64_t low, int64_t high) {
    auto* const end = steps_.data() + count_;
    auto* const same = std::find_if(steps_.data(), end, [&](const Step& s) { return s.size == size; });
    if (same == end) ++count_, *same = {size, 0, 0};
    same->low += low, same->high += high;
  }
  // Adds the offsets of a tensor's elements from its first byte, multiplied by `sign`.
  void AddElements(const lz_tensor& t, int sign) {
    Add(1, sign < 0 ? 1 - ItemSize(t) : 0, sign < 0 ? 0 : ItemSize(t) - 1);
    for (int32_t d = 0; d < t.ndim; ++d) {
      if (t.shape[d] > 1 && t.strides[d] != 0)
        Add(std::abs(t.strides[d]) * ItemSize(t), sign < 0 ? 1 - t.shape[d] : 0, sign < 0 ? 0 : t.shape[d] - 1);
    }
  }
  // True if some sum equals `target`, and also if there are too many irregular steps to try them all.
  bool Reach(int64_t target) {
    std::sort(steps_.data(), steps_.data() + count_, [](const Step& a, const Step& b) { return a.size > b.size; });
    least_[count_] = most_[count_] = 0;
    for (size_t i = count_; i-- > 0;) {
      least_[i] = least_[i + 1] + steps_[i].low * steps_[i].size;
      most_[i] = most_[i + 1] + steps_[i].high * steps_[i].size;
    }
    tries_ = 4096;
    return ReachFrom(0, target);
  }

 private:
  struct Step {
    int64_t size, low, high;
  };
  bool ReachFrom(size_t i, int64_t target) {
    if (target < least_[i] || target > most_[i]) return false;
    if (i + 1 == count_) return true;  // bytes
    const Step& s = steps_[i];
    for (int64_t n = std::max(s.low, (target - most_[i + 1]) / s.size - 1); n <= s.high; ++n) {
      if (target - n * s.size < least_[i + 1]) break;
      if (--tries_ < 0 || ReachFrom(i + 1, target - n * s.size)) return true;
    }
    return false;
  }

  std::array<Step, 2 * kMaxRank + 1> steps_{};
  std::array<int64_t, 2 * kMaxRank + 2> least_{}, most_{};  // sums of the smallest and largest multiples of the steps
                                                            // from i on
  size_t count_ = 0;
  int tries_ = 0;
};

}  // namespace

bool IsDense(const lz_tensor& t) {
  if (std::count(t.shape, t.shape + std::max(t.ndim, 0), 0) > 0) return true;
  int64_t stride = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] != 1 && t.strides[d] != stride) return false;
    stride *= t.shape[d];
  }
  return true;
}

bool RepeatsMemory(const lz_tensor& t) {
  if (IsEmpty(t)) return false;
  int64_t reach = 1;  // elements spanned by the inner axes, as long as every axis steps over them
  bool nested = true;
  for (int32_t d = t.ndim; d-- > 0 && nested;) {
    if (t.shape[d] == 1) continue;
    nested = t.strides[d] >= reach && !__builtin_mul_overflow(t.shape[d], t.strides[d], &reach);
  }
  if (nested) return false;
  if (!ExtentOf(t)) return true;
  // Two elements first differ along some axis: by one or more there, and by any amount along the axes after it.
  for (int32_t first = 0; first < t.ndim; ++first) {
    if (t.shape[first] == 1) continue;
    if (t.strides[first] == 0) return true;
    lz_tensor inner = t;
    inner.ndim = t.ndim - first - 1, inner.shape += first + 1, inner.strides += first + 1;
    Steps steps;
    steps.AddElements(inner, 1);
    steps.AddElements(inner, -1);
    steps.Add(std::abs(t.strides[first]) * ItemSize(t), 1, t.shape[first] - 1);
    if (steps.Reach(0)) return true;
  }
  return false;
}

bool SharesMemory(const lz_tensor& a, const lz_tensor& b) {
  if (IsEmpty(a) || IsEmpty(b)) return false;
  const auto of_a = ExtentOf(a), of_b = ExtentOf(b);
  if (!of_a || !of_b) return true;
  if (of_a->end <= of_b->begin || of_b->end <= of_a->begin) return false;
  Steps steps;
  steps.AddElements(a, 1);
  steps.AddElements(b, -1);
  return steps.Reach(of_b->begin - of_a->begin);
}

}  // namespace lz
