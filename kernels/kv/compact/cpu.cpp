// kv.compact, CPU: whole blocks are copied.
//   key_cache, value_cache [blocks, block_size, h_kv, d]  any dtype, contiguous
//   moves [m, 2] i32|i64
// Workspace: none. Deterministic. Pairs that must be refused: nothing is written.
#include "ops/kv/compact.h"

#include <cstring>

#include "core/kernel.h"
#include "kernels/launch.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_compact;

int32_t Launch(const lz_kernel_args* args) {
  const View moves(args->tensors[kMoves]);
  if (const int32_t refused = CheckMoves(moves, args->axes[kBlocks])) return refused;
  for (int cache : {kKeyCache, kValueCache}) {
    const lz_tensor& t = args->tensors[cache];
    const int64_t bytes = t.shape[1] * t.shape[2] * t.shape[3] * ByteSize(DTypeOf(t));
    const int64_t grain = 64 * 1024 / (bytes + 1) + 1;  // about 3 us of copying
    ParallelFor(args, moves.size(0), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t from = moves.GetInt({i, 0}), to = moves.GetInt({i, 1});
        if (from < 0 || bytes == 0) continue;
        std::memcpy(Data<char>(t) + to * bytes, Data<char>(t) + from * bytes, size_t(bytes));
      }
    });
  }
  return 0;
}

constexpr std::array kFamily = {
    CpuSpec("cpu.kv.compact", &Launch, {.dtypes = ops::kv::kCacheDTypes, .strides = Strides::kContiguous})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
