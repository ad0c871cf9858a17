// Reference of tokenize.encode: any strides; tokenizer 0.
#include "ops/tokenize/encode.h"

#include "ops/common/tokens_reference.h"

namespace {
using namespace lz;
using namespace lz::ops::tokenize_encode;

int32_t Launch(const lz_kernel_args* args) {
  if (const int32_t code = ops::tokens::CopyPieces(args, 255); code != LZ_LAUNCH_DONE) return code;
  const View spans(args->tensors[kSpans]), ends(args->tensors[kEnds]);
  if (!spans.given()) return LZ_LAUNCH_DONE;
  int64_t text = 0;
  for (int64_t i = 0; i < spans.size(0); ++i) {
    while (text < ends.size(0) && ends.GetInt({text}) <= i) ++text;
    const int64_t place = i - (text > 0 ? ends.GetInt({text - 1}) : 0);
    spans.SetInt({i, 0}, text < ends.size(0) ? place : 0);
    spans.SetInt({i, 1}, text < ends.size(0) ? place + 1 : 0);
  }
  return LZ_LAUNCH_DONE;
}

constexpr std::array kFamily = {ReferenceKernel("ref.tokenize.encode", &Launch, Mask(DType::kU8))};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
