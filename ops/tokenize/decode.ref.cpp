// Reference of tokenize.decode: any strides; tokenizer 0.
#include "ops/tokenize/decode.h"

#include "ops/common/tokens_reference.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) { return ops::tokens::CopyPieces(args, 255); }

constexpr std::array kFamily = {ReferenceKernel("ref.tokenize.decode", &Launch, kIndices)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
