#include "tokenize/numbers.h"

#include <deque>
#include <mutex>

namespace lz::tokenize {
namespace {

struct All {
  std::mutex mutex;
  std::deque<std::shared_ptr<const Tokenizer>> tokenizers;
};
All& Everything() {
  static auto* all = new All;  // calls of other threads may outlive static objects
  return *all;
}

}  // namespace

int64_t NumberOf(std::shared_ptr<const Tokenizer> tokenizer) {
  const std::lock_guard lock(Everything().mutex);
  Everything().tokenizers.push_back(std::move(tokenizer));
  return int64_t(Everything().tokenizers.size());
}

const Tokenizer* Numbered(int64_t number) {
  const std::lock_guard lock(Everything().mutex);
  if (number < 1 || size_t(number) > Everything().tokenizers.size()) return nullptr;
  return Everything().tokenizers[size_t(number) - 1].get();
}

}  // namespace lz::tokenize
