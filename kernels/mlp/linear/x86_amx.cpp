// Linear in bf16 with AMX tiles for many rows.
//   input  [..., k]  bf16, last dim dense     weight [n, k]  bf16, last dim dense
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: the input in micro-panels of 16 rows (x86_micro_panels.h), which are the right operands of tiles; weights
// are the left ones, read as they are stored, so that sums are transposed. Deterministic. Source: own. TDPBF16PS sums
// pairs of products in FP32 and treats denormals as zero.
#include "kernels/spec.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <cstring>

#include "kernels/gemm/x86_amx.h"
#include "kernels/gemm/x86_micro_panels.h"

namespace {
using namespace lz;
using namespace lz::x86_micro_panels;

constexpr int64_t kBlockK = 320;           // values of k of kBlockColumns columns: 20 KiB of weights in the L1 cache
constexpr int64_t kBlockBytes = 1 << 20;   // bytes of input in the L2 cache
constexpr int64_t kBlockMicroPanels = 64;  // micro-panels for which sums of several blocks of k are kept

// Sums of kBlockColumns columns with two micro_panels.
using Block = float[2][kBlockColumns][kMicroPanel];

// The weights of one block, tile by tile. Nothing past their last row or value of k is read; zeros replace it.
struct Panel {
  alignas(64) uint16_t tiles[kBlockK / kStepK][kBlockColumns][kStepK];

  LZ_AVX512BF16 void Fill(const uint16_t* w, int64_t stride, int64_t columns, int64_t k) {
    for (int64_t c = 0; c < kBlockColumns; ++c) {
      for (int64_t i = 0; i < k; i += kStepK) {
        const __mmask32 mask = c >= columns      ? __mmask32{0}
                               : k - i >= kStepK ? ~__mmask32{0}
                                                 : (__mmask32{1} << (k - i)) - 1;
        _mm512_store_si512(tiles[i / kStepK][c], _mm512_maskz_loadu_epi16(mask, w + c * stride + i));
      }
    }
  }
};

// block (+)= the products of 16 C rows of weights, `steps` x kStepK elements each, with S micro_panels.
template <int C, int S>
void Multiply(const Panel& panel, const uint32_t* x, int64_t micro_panel_size, int64_t steps, bool add, Block& block) {
  const x86::Sums sums = {block[0][0], 64, sizeof(block[0])};
  add ? x86::LoadSums<C, S>(sums) : x86::ZeroSums<C, S>(sums);
  x86::AddProducts<C, S>({panel.tiles, 64, sizeof(panel.tiles[0]), sizeof(panel.tiles[0]) / 2},
                         {x, 64, kStepK / 2 * kMicroPanel * 4, micro_panel_size * 4}, steps);
  x86::StoreSums<C, S>(sums);
}

// Columns [first, first + columns), at most kBlockColumns, of `micro_panels` micro-panels from `micro_panel` on.
void RunPanel(const lz_tensor& weight, const uint32_t* packed, const OutputRows& output, int64_t micro_panel,
              int64_t micro_panels, int64_t first, int64_t columns) {
  const int64_t k = weight.shape[1], micro_panel_size = MicroPanelSize(k);
  const int64_t blocks = std::max<int64_t>(1, CeilDiv(k, kBlockK));
  const int64_t block = std::max(kStepK, CeilDiv(CeilDiv(k, blocks), kStepK) * kStepK);
  Panel panel;
  alignas(64) Block sums[kBlockMicroPanels / 2];          // one block of k uses only the first
  if (columns <= 16) std::memset(sums, 0, sizeof(sums));  // the other 16 columns are read, though not stored
  for (int64_t from = 0; from < k || from == 0; from += block) {
    const int64_t size = std::min(block, k - from), steps = CeilDiv(size, kStepK);
    panel.Fill(Data<const uint16_t>(weight) + first * weight.strides[0] + from, weight.strides[0], columns, size);
    for (int64_t s = 0; s < micro_panels; s += 2) {
      const uint32_t* x = packed + (micro_panel + s) * micro_panel_size + from / 2 * kMicroPanel;
      Block& to = sums[blocks > 1 ? s / 2 : 0];
      const auto multiply = micro_panels - s > 1 ? (columns > 16 ? &Multiply<2, 2> : &Multiply<1, 2>)
                                                 : (columns > 16 ? &Multiply<2, 1> : &Multiply<1, 1>);
      multiply(panel, x, micro_panel_size, steps, from > 0, to);
      if (from + size < k) continue;
      for (int64_t i = 0; i < std::min<int64_t>(2, micro_panels - s); ++i)
        output.Store(to[i][0], kMicroPanel, (micro_panel + s + i) * kMicroPanel, first, columns);
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const OutputRows output(args);
  const int64_t k = args->tensors[ops::mlp_linear::kWeight].shape[1], micro_panels = CeilDiv(output.rows, kMicroPanel);
  const int64_t fitting = kBlockBytes / int64_t(sizeof(uint32_t)) / std::max<int64_t>(1, MicroPanelSize(k)) / 2 * 2;
  const int64_t block = std::clamp<int64_t>(fitting, 2, kBlockMicroPanels);
  return Run(args, [&](int64_t begin, int64_t end) {
    const x86::Tiles tiles(x86::kWholeRowBytes, x86::kWholeRows);
    for (int64_t micro_panel = 0; micro_panel < micro_panels; micro_panel += block) {
      for (int64_t first = begin; first < end; first += kBlockColumns)
        RunPanel(args->tensors[ops::mlp_linear::kWeight], static_cast<const uint32_t*>(args->workspace), output,
                 micro_panel, std::min(block, micro_panels - micro_panel), first, std::min(kBlockColumns, end - first));
    }
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16 | kIsaAmxBf16},
});
// A micro-panel of the matrix unit has 16 rows: with half of them x86.mlp.linear.avx512bf16 is faster.
constexpr auto kFewRows = std::to_array<Constraint>({{"rows", Rel::kLe, 8}});
constexpr auto kPreferences = std::to_array<Preference>({{.when = kFewRows, .priority = kAfterOthers}});
constexpr std::array kFamily = {CpuSpec("x86.mlp.linear.amx", &Launch,
                                        {.operation = "mlp.linear",
                                         .dtypes = Mask(DType::kBF16),
                                         .constraints = kConstraints,
                                         .accepts = kAcceptsAll,
                                         .priority = 90,
                                         .preferences = kPreferences,
                                         .workspace = &Workspace})};
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
