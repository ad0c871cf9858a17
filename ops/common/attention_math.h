// FP64 arithmetic of one attention row, shared by the attention references. Correct first, not fast.
//   AttentionRow row;
//   double lse = row.Attend(keys, sink, [&](j) { return logit or kHidden; }, [&](j, c) { return value; });
//   row.output()[c]
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/kernel.h"
#include "core/view.h"

namespace lz::ops::attention {

inline constexpr double kHidden = -std::numeric_limits<double>::infinity();  // the logit of a key that is not seen

// sum of a[i] b[i] over the last axes, from element offsets on.
inline double Dot(const View& a, int64_t a_offset, const View& b, int64_t b_offset, int64_t n) {
  double sum = 0;
  if (n == 0) return sum;
  const int64_t a_stride = a.stride(-1), b_stride = b.stride(-1);
  for (int64_t i = 0; i < n; ++i) sum += a.Load(a_offset + i * a_stride) * b.Load(b_offset + i * b_stride);
  return sum;
}

inline double Softcap(double z, double cap) { return cap > 0 ? cap * std::tanh(z / cap) : z; }

class AttentionRow {
 public:
  explicit AttentionRow(int64_t d_v) : out_(size_t(d_v)) {}

  // logit(j) and value(j, c) for j in [begin, end); hidden keys' values are not read. sink = kHidden: none.
  // Returns the lse; the output stays in output().
  template <class Logit, class Value>
  double Attend(int64_t begin, int64_t end, double sink, Logit&& logit, Value&& value) {
    z_.clear();
    double top = kHidden;  // NaN once a logit is NaN
    for (int64_t j = begin; j < end; ++j) {
      z_.push_back(logit(j));
      if (!std::isnan(top) && !(z_.back() <= top)) top = z_.back();
    }
    out_.assign(out_.size(), 0.0);
    if (top == kHidden) return kHidden;
    double sum = 0;
    for (const double z : z_) sum += z == kHidden ? 0.0 : std::exp(z - top);
    const double lse = top + std::log(sum);
    if (sink == -kHidden && std::isfinite(top)) return lse;
    const double peak = std::isnan(sink) || sink > top ? sink : top;
    const double total = sum * std::exp(top - peak) + (sink == kHidden ? 0.0 : std::exp(sink - peak));
    for (int64_t j = begin; j < end; ++j) {
      const double z = z_[size_t(j - begin)];
      if (z == kHidden) continue;
      const double weight = std::exp(z - peak) / total;
      for (size_t c = 0; c < out_.size(); ++c) out_[c] += weight * value(j, int64_t(c));
    }
    return lse;
  }

  std::span<double> output() { return out_; }

 private:
  std::vector<double> z_, out_;
};

// Where the rows of one KV head lie in a paged cache: entry j of a sequence is slot j % page_size of its j /
// page_size-th listed page.
class PagedRows {
 public:
  PagedRows(const View& cache, const View& pages, int64_t first, int64_t page_stride)
      : cache_(&cache), pages_(&pages), first_(first), page_stride_(page_stride) {}
  int64_t Offset(int64_t j) const {
    const int64_t size = cache_->size(1);
    return pages_->LoadInt(first_ + j / size * page_stride_) * cache_->stride(0) + j % size * cache_->stride(1);
  }

 private:
  const View* cache_;
  const View* pages_;
  int64_t first_, page_stride_;
};

// True if the entries [begin, end) of a sequence lie in pages that exist.
inline bool PagesExist(const View& pages, int64_t first, int64_t page_stride, int64_t begin, int64_t end,
                       int64_t page_size, int64_t num_pages) {
  for (int64_t j = begin; j < end; j = (j / page_size + 1) * page_size) {
    const int64_t page = pages.LoadInt(first + j / page_size * page_stride);
    if (page < 0 || page >= num_pages) return false;
  }
  return true;
}

// True if offsets (CSR row pointers) start at 0, never decrease and end at most at `limit`.
inline bool OffsetsValid(const View& offsets, int64_t limit) {
  int64_t last = 0;
  for (int64_t i = 0; i < offsets.size(0); ++i) {
    const int64_t v = offsets.GetInt({i});
    if (i == 0 ? v != 0 : v < last) return false;
    last = v;
  }
  return last <= limit;
}

// One decode row per head of one sequence over a paged cache.
struct DecodeSequence {
  int64_t begin = 0, end = 0;  // entries seen
  int64_t first = 0;           // element offset of the sequence's first page number
  int64_t page_stride = 1;     // elements from one page number to the next
};
struct DecodeTensors {
  View query, key, value, pages, sinks;
};
// write(head, output, lse); query_offset and head_stride are elements.
template <class Write>
void DecodePaged(const DecodeTensors& t, const DecodeSequence& s, int64_t query_offset, int64_t head_stride,
                 int64_t h_q, double scale, double softcap, Write&& write) {
  const int64_t d_qk = t.key.size(3), d_v = t.value.size(3), h_kv = t.key.size(2);
  const PagedRows keys(t.key, t.pages, s.first, s.page_stride), values(t.value, t.pages, s.first, s.page_stride);
  AttentionRow row(d_v);
  for (int64_t h = 0; h < h_q; ++h) {
    const int64_t kv = h / (h_q / h_kv);
    const double lse = row.Attend(
        s.begin, s.end, t.sinks.given() ? t.sinks.Get({h}) : kHidden,
        [&](int64_t j) {
          const int64_t at = keys.Offset(j) + kv * t.key.stride(2);
          return Softcap(scale * Dot(t.query, query_offset + h * head_stride, t.key, at, d_qk), softcap);
        },
        [&](int64_t j, int64_t c) {
          return t.value.Load(values.Offset(j) + kv * t.value.stride(2) + c * t.value.stride(3));
        });
    write(h, row.output(), lse);
  }
}

}  // namespace lz::ops::attention
