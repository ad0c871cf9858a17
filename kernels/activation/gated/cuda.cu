// activation(gate) * up of a packed projection on CUDA, with the clamped form: FP32 arithmetic, rounded once.
//   input  [..., 2 n]  f32|f16|bf16, rows dense, leading strides free; gate and up in halves or in pairs
//   output [..., n]    dtype of input
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formulas in ops/common/activation.h.
#include "kernels/activation/gated_cuda.h"
#include "kernels/spec.h"
#include "ops/activation/gated.h"

namespace lz {
namespace {
using namespace lz::ops::activation_gated;

template <class F>
struct Clamped {
  F f;
  float limit, up_offset;  // limit: infinity where there is none
  __device__ float operator()(float gate, float up) const {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return f(gate) * (up + up_offset);
  }
};

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &out = args->tensors[kOutput];
  const lz_scalar* s = args->scalars;
  const float limit = s[kLimit].given ? float(s[kLimit].value.f) : HUGE_VALF, offset = float(s[kUpOffset].value.f);
  lz_tensor gate = x, up = x;
  gate.shape = up.shape = out.shape;
  up.byte_offset += out.shape[out.ndim - 1] * ByteSize(DTypeOf(x));
  const Activation any = {int32_t(s[kActivation].value.i), float(s[kAlpha].value.f)};
  const Clamped<Activation> clamped = {any, limit, offset};
  if (s[kInterleaved].value.i != 0) return LaunchForm<GatedForm::kPairs>(args, x, x, out, clamped, clamped);
  return WithActivation(any.function, any.alpha, [&](auto f) {
    return LaunchForm<GatedForm::kTwo>(args, gate, up, out, Clamped<decltype(f)>{f, limit, offset}, clamped);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.activation.gated", &Launch, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
