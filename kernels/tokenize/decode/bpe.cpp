// tokenize.decode, CPU: the texts of the own tokenizer's ids (src/tokenize).
//   ids [num_ids] i32|i64, dense     starts [texts + 1] i32|i64
//   text [capacity] u8     ends [texts] i64
// Workspace: none; texts are collected in memory of the thread first. Deterministic. Refused: an id with which the
// tokenizer's library fails.
#include "ops/tokenize/decode.h"

#include <span>

#include "kernels/tokenize/pieces.h"

namespace {
using namespace lz;
using namespace lz::ops::tokenize_decode;

// The ids of a piece as int64.
std::span<const int64_t> Ids(const lz_tensor& ids, int64_t first, int64_t end, std::vector<int64_t>* converted) {
  if (DTypeOf(ids) == DType::kI64) return {Data<int64_t>(ids) + first, size_t(end - first)};
  converted->assign(Data<int32_t>(ids) + first, Data<int32_t>(ids) + end);
  return *converted;
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  const int64_t number = s[ops::tokens::kTokenizer].value.i;
  const tokenize::Tokenizer* const tokenizer = tokenize::Numbered(number);
  if (number != 0 && !tokenizer) return LZ_LAUNCH_REFUSED;
  std::string text;
  std::vector<int64_t> ends, converted;
  const bool served = tokens::ForEachPiece(t[kStarts], t[kIds].shape[0], [&](int64_t first, int64_t end) {
    const std::span<const int64_t> ids = Ids(t[kIds], first, end, &converted);
    if (tokenizer) {
      if (!tokenizer->Decode(ids, s[ops::tokens::kSpecials].value.i, &text)) return false;
    } else {
      for (int64_t id : ids) text.push_back(char(id & 255));
    }
    ends.push_back(int64_t(text.size()));
    return true;
  });
  if (!served) return LZ_LAUNCH_REFUSED;
  tokens::WriteRows(text, t[kText]);
  tokens::WriteRows(ends, t[kEnds]);
  return LZ_LAUNCH_DONE;
}

constexpr std::array kServed = {tokens::kServedByOwn};
constexpr std::array kFamily = {CpuSpec("bpe.tokenize.decode", &Launch,
                                        {.dtypes = kIndices,
                                         .constraints = kServed,
                                         .accepts = kAcceptsAll,
                                         .strides = Strides::kContiguous,
                                         .priority = 80})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
