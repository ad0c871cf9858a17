// Linear of 1 to 16 rows on CUDA: every weight is read once, by asynchronous copies, and multiplied by tensor cores.
//   input [..., k]  f16|bf16, rows dense, at most 16     weight [n, k]  dtype of input, rows begin at multiples of 16
//   bytes bias  [n]       dtype of input, optional             output [..., n]
// Workspace: none. Deterministic. Safe in graph captures. Source: own.
#include "kernels/gemm/few_rows_spec_cuda.h"
#include "ops/mlp/linear.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_linear;

#ifdef __CUDACC__
// A Format of few_rows_cuda.h: the weights themselves, kBytes of a row in a stage.
template <int kBytes>
struct Plain {
  struct Params {};
  static constexpr int kStages = kBytes > 128 ? 6 : 3;
  static constexpr int kStageBytes = kBytes, kStageValues = kBytes / 2, kExtraBytes = 0, kFactorsBytes = 0;
  static constexpr bool kScaled = false, kOffsets = false, kHalfUnits = false, kPrepared = false, kOften = true;
  static constexpr few_rows::Order kOrder = few_rows::Order::kNatural;
  __device__ Plain(const Params&, int, int, int) {}
  __device__ void Issue(int, uint8_t*) const {}
  __device__ void Begin(int) const {}
  template <class T>
  __device__ void Row(const uint8_t* codes, int unit, int t, uint32_t (&pairs)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 quad = *reinterpret_cast<const uint2*>(codes + unit * 64 + half * 32 + t * 8);
      pairs[2 * half] = quad.x, pairs[2 * half + 1] = quad.y;
    }
  }
  __device__ static float Final(const Params&, int) { return 1.0f; }
};
#endif

template <int kBytes>
int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  return few_rows::Launch(t[kInput], t[kWeight], t[kBias], t[kOutput], [&]<class T>(few_rows::Call<T> call) {
    call.weight_stride *= int64_t(sizeof(T)), call.row_bytes *= int64_t(sizeof(T));
    return few_rows::Run<T, Plain<kBytes>>(call, {}, args->stream);
  });
}

constexpr auto kConstraints = few_rows::WithCalls({
    {"k", Rel::kGe, 16},
    {"k", Rel::kMultipleOf, 16},
    {"input.alignment", Rel::kGe, 3},
});
constexpr KernelSpec Spec(std::string_view id, lz_launch_fn launch, int32_t priority) {
  return CudaSpec(id, launch,
                  {.operation = "mlp.linear",
                   .dtypes = few_rows::kInputs,
                   .constraints = kConstraints,
                   .accepts = kAcceptsAll,
                   .priority = priority});
}
constexpr std::array kFamily = {Spec("cuda.mlp.linear", &Launch<128>, kNotYetMeasured),
                                Spec("cuda.mlp.linear.long", &Launch<256>, kNotYetMeasured - 1)};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
