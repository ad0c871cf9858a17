// GGUF rows to groups of 16 for formats whose blocks have 32 values: whole bytes are moved.
//   weight [n, row_bytes] u8, last dim dense     output [groups, group_bytes] u8, dense
// Workspace: none. Source: own.
#include <algorithm>
#include <cstring>

#include "core/kernel.h"
#include "kernels/launch.h"
#include "kernels/spec.h"
#include "ops/mlp/linear/gguf/prepack.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_gguf_prepack;

// Four values of one row, then four of the next: the blocks' values have the order of the groups already.
void PackRow(const uint8_t* row, int64_t lane, int64_t k, int64_t format, uint8_t* group) {
  const int64_t weight_bytes = kPackedCodes[size_t(format)], scales = kPackedScales[size_t(format)];
  uint8_t* scale = group + ScalesBegin(format, k) + lane * 2;
  for (int64_t block = 0; block < k / 32; ++block) {
    const uint8_t* from = row + block * kBlockBytes[size_t(format)];
    std::memcpy(scale + block * scales, from, 2);
    from += 2;
    if (format == kQ4_1) {
      std::memcpy(scale + block * scales + 32, from, 2);
      from += 2;
    }
    uint8_t* to = group + block * weight_bytes + lane * 4;
    const int64_t parts = weight_bytes / 64;
    for (int64_t c = 0; c < parts; ++c) {
      uint32_t four;
      std::memcpy(&four, from + 4 * c, 4);
      if (format == kQ8_0) four ^= 0x80808080u;
      std::memcpy(to + c * 64, &four, 4);
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &weight = args->tensors[kWeight], &out = args->tensors[kPacked];
  const int64_t n = weight.shape[0], k = args->scalars[kK].value.i, format = args->scalars[kFormat].value.i;
  ParallelFor(args, out.shape[0], 65536 / (16 * k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      uint8_t* group = Data<uint8_t>(out) + g * out.strides[0];
      std::memset(group, 0, size_t(out.shape[1]));
      for (int64_t row = g * kGroupRows; row < std::min(n, (g + 1) * kGroupRows); ++row) {
        PackRow(Data<const uint8_t>(weight) + row * weight.strides[0], row % kGroupRows, k, format, group);
      }
    }
  });
  return 0;
}

constexpr std::array<int64_t, 3> kFormatsOf32 = {kQ4_0, kQ4_1, kQ8_0};
constexpr auto kConstraints = std::to_array<Constraint>({
    {"format", Rel::kInSet, 0, kFormatsOf32, ReasonCode::kQuantFormatUnsupported},
});
constexpr std::array kFamily = {CpuSpec("cpu.mlp.linear.gguf.prepack", &Launch,
                                        {.dtypes = Mask(DType::kU8), .constraints = kConstraints, .priority = 60})};
}  // namespace
LZ_KERNEL_FAMILY = kFamily;
