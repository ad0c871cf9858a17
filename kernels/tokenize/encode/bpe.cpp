// tokenize.encode, CPU: the own byte pair encoding (src/tokenize).
//   text [bytes] u8, dense     starts [texts + 1] i32|i64
//   ids [capacity] i32     ends [texts] i64     spans [capacity, 2] i32
// Workspace: none; ids are collected in memory of the thread first. Deterministic. Refused: a text that is not UTF-8,
// or that a normalizer of its tokenizer may change in a way that is not computed here.
#include "ops/tokenize/encode.h"

#include "kernels/tokenize/pieces.h"

namespace {
using namespace lz;
using namespace lz::ops::tokenize_encode;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  const int64_t number = s[ops::tokens::kTokenizer].value.i;
  const tokenize::Tokenizer* const tokenizer = tokenize::Numbered(number);
  if (number != 0 && !tokenizer) return LZ_LAUNCH_REFUSED;
  const bool specials = s[ops::tokens::kSpecials].value.i, offsets = Given(t[kSpans]);
  const char* const bytes = Data<char>(t[kText]);
  std::vector<int32_t> ids;
  std::vector<tokenize::Span> spans;
  std::vector<int64_t> ends;
  const bool served = tokens::ForEachPiece(t[kStarts], t[kText].shape[0], [&](int64_t first, int64_t end) {
    bool one = true;
    if (tokenizer) {
      one = tokenizer->Encode({bytes + first, size_t(end - first)}, specials, &ids, offsets ? &spans : nullptr);
    } else {
      for (int64_t i = first; i < end; ++i) ids.push_back(uint8_t(bytes[i]));
      for (int32_t i = 0; offsets && i < end - first; ++i) spans.push_back({i, i + 1});
    }
    ends.push_back(int64_t(ids.size()));
    return one;
  });
  if (!served) return LZ_LAUNCH_REFUSED;
  static_assert(sizeof(tokenize::Span) == 2 * sizeof(int32_t));
  tokens::WriteRows(ids, t[kIds]);
  tokens::WriteRows(ends, t[kEnds]);
  if (offsets) tokens::WriteRows(spans, t[kSpans]);
  return LZ_LAUNCH_DONE;
}

constexpr auto kServed = std::to_array<Constraint>({
    tokens::kServedByOwn,
    {.field = "bpe_lacks_offsets", .rel = Rel::kEq, .operand = 0, .code = ReasonCode::kOffsetsUnsupported},
});
constexpr std::array kFamily = {CpuSpec("bpe.tokenize.encode", &Launch,
                                        {.dtypes = Mask(DType::kU8),
                                         .constraints = kServed,
                                         .accepts = kAcceptsAll,
                                         .strides = Strides::kContiguous,
                                         .priority = 80})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
