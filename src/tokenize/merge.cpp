#include "tokenize/merge.h"

#include <algorithm>
#include <queue>

namespace lz::tokenize {
namespace {

void MergeShort(const PairTable& pairs, std::vector<int32_t>* symbols) {
  int32_t ranks[kShort], made[kShort];
  int32_t* const s = symbols->data();
  size_t n = symbols->size();
  const auto look = [&](size_t i) {
    const PairTable::Found found = pairs.Find(s[i], s[i + 1]);
    ranks[i] = found.rank;
    made[i] = found.id;
  };
  for (size_t i = 0; i + 1 < n; ++i) look(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == PairTable::kNone) break;
    s[best] = made[best];
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      s[i] = s[i + 1];
      ranks[i] = ranks[i + 1];
      made[i] = made[i + 1];
    }
    if (best > 0) look(best - 1);
    if (best + 1 < n) look(best);
  }
  symbols->resize(n);
}

struct Item {
  int32_t rank, at, id;
  int32_t left, right;  // as they were; an item whose symbols have changed is stale
  bool operator>(const Item& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

void MergeLong(const PairTable& pairs, std::vector<int32_t>* symbols) {
  std::vector<int32_t>& s = *symbols;
  const auto n = int32_t(s.size());
  std::vector<int32_t> next(s.size()), previous(s.size());
  std::vector<Item> made;
  made.reserve(s.size());
  const auto look = [&](int32_t i, auto&& add) {
    if (i < 0 || next[size_t(i)] >= n) return;
    const int32_t left = s[size_t(i)], right = s[size_t(next[size_t(i)])];
    const PairTable::Found found = pairs.Find(left, right);
    if (found.rank != PairTable::kNone) add(Item{found.rank, i, found.id, left, right});
  };
  for (int32_t i = 0; i < n; ++i) {
    next[size_t(i)] = i + 1;
    previous[size_t(i)] = i - 1;
  }
  for (int32_t i = 0; i < n; ++i) look(i, [&](const Item& item) { made.push_back(item); });
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue(std::greater<>(), std::move(made));
  while (!queue.empty()) {
    const Item item = queue.top();
    queue.pop();
    const auto at = size_t(item.at);
    if (s[at] != item.left || next[at] >= n || s[size_t(next[at])] != item.right) continue;
    const int32_t gone = next[at];
    s[at] = item.id;
    s[size_t(gone)] = -1;
    next[at] = next[size_t(gone)];
    if (next[at] < n) previous[size_t(next[at])] = item.at;
    const auto push = [&](const Item& one) { queue.push(one); };
    look(previous[at], push);
    look(item.at, push);
  }
  s.erase(std::remove(s.begin(), s.end(), -1), s.end());
}

}  // namespace

void MergeSymbols(const PairTable& pairs, std::vector<int32_t>* symbols) {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kShort) return MergeShort(pairs, symbols);
  MergeLong(pairs, symbols);
}

}  // namespace lz::tokenize
