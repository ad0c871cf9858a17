// tokenize.decode, CPU: the texts of the own tokenizer's ids (src/tokenize).
//   ids [num_ids] i32, dense     starts [texts + 1] i32|i64
//   text [capacity] u8     ends [texts] i64
// Workspace: none; texts are collected in memory of the thread first. Deterministic.
#include "ops/tokenize/decode.h"

#include "kernels/tokenize/pieces.h"

namespace {
using namespace lz;
using namespace lz::ops::tokenize_decode;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  const int64_t number = s[ops::tokens::kTokenizer].value.i;
  const tokenize::Tokenizer* const tokenizer = tokenize::Numbered(number);
  if (number != 0 && !tokenizer) return LZ_LAUNCH_REFUSED;
  const int32_t* const ids = Data<int32_t>(t[kIds]);
  std::string text;
  std::vector<int64_t> ends;
  (void)tokens::ForEachPiece(t[kStarts], t[kIds].shape[0], [&](int64_t first, int64_t end) {
    if (tokenizer) {
      tokenizer->Decode({ids + first, size_t(end - first)}, s[ops::tokens::kSpecials].value.i, &text);
    } else {
      for (int64_t i = first; i < end; ++i) text.push_back(char(ids[i] & 255));
    }
    ends.push_back(int64_t(text.size()));
    return true;
  });
  tokens::WriteRows(text, t[kText]);
  tokens::WriteRows(ends, t[kEnds]);
  return LZ_LAUNCH_DONE;
}

constexpr auto kServed = std::to_array<Constraint>({
    {.field = "bpe", .rel = Rel::kEq, .operand = 1, .code = ReasonCode::kTokenizerIdMismatch},
});
constexpr std::array kFamily = {CpuSpec("bpe.tokenize.decode", &Launch,
                                        {.dtypes = Mask(DType::kI32),
                                         .constraints = kServed,
                                         .accepts = kAcceptsAll,
                                         .strides = Strides::kContiguous,
                                         .priority = 80})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
