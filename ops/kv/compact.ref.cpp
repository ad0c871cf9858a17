// Reference of kv.compact: element by element, any strides, any dtype.
#include "ops/kv/compact.h"

#include <cstring>

#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_compact;

void CopyBlock(const View& cache, int64_t from, int64_t to) {
  const int64_t item = ByteSize(cache.dtype());
  char* const data = cache.data<char>();
  for (int64_t s = 0; s < cache.size(1); ++s) {
    for (int64_t h = 0; h < cache.size(2); ++h) {
      for (int64_t i = 0; i < cache.size(3); ++i) {
        const int64_t within = s * cache.stride(1) + h * cache.stride(2) + i * cache.stride(3);
        std::memcpy(data + (to * cache.stride(0) + within) * item, data + (from * cache.stride(0) + within) * item,
                    size_t(item));
      }
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const View moves(args->tensors[kMoves]);
  if (const int32_t refused = CheckMoves(moves, args->axes[kBlocks])) return refused;
  for (int64_t i = 0; i < moves.size(0); ++i) {
    if (moves.GetInt({i, 0}) < 0) continue;
    for (int cache : {kKeyCache, kValueCache}) {
      CopyBlock(View(args->tensors[cache]), moves.GetInt({i, 0}), moves.GetInt({i, 1}));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.kv.compact", &Launch, ops::kv::kCacheDTypes)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
