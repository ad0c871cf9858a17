// Attention over packed sequences on the CPU, SIMD: each sequence is a dense call of kernels/attention/loop.h.
//   query [total_q, h_q, d_qk], key [total_kv, h_kv, d_qk], value [total_kv, h_kv, d_v]  f32|f16|bf16, last axis dense
// Many sequences run in parallel, few one after another with the threads inside. Invalid offsets: fails with 1 before
// anything is written. Workspace: scratch per worker. Deterministic.
#include "kernels/attention/sequences.h"
#include "kernels/spec.h"
#include "ops/attention/ragged.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_ragged;
using attention::Problem;

// The part that all sequences share; s_q and s_kv are upper bounds.
Problem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &lse = t[kLse];
  const lz_scalar* s = args->scalars;
  Problem p = {.dtype = DTypeOf(t[kQuery]), .cache = DTypeOf(t[kKey])};
  p.b = args->axes[kOffsets] - 1;
  p.s_q = std::min(args->axes[kTotalQ], s[kMaxSeqlenQ].value.i);
  p.s_kv = std::min(args->axes[kTotalKV], s[kMaxSeqlenKV].value.i);
  p.h_q = args->axes[kHQ];
  p.h_kv = args->axes[kHKV];
  p.group = p.h_kv > 0 ? p.h_q / p.h_kv : 1;
  p.d_qk = args->axes[kDQK];
  p.d_v = args->axes[kDV];
  p.q = attention::RowsOf(t[kQuery], -1, 0, 1);
  p.k = attention::RowsOf(t[kKey], -1, 0, 1);
  p.v = attention::RowsOf(t[kValue], -1, 0, 1);
  p.out = attention::RowsOf(t[kOutput], -1, 0, 1);
  p.scale = float(s[kScale].value.f);
  p.softcap = float(s[kSoftcap].value.f);
  p.causal = s[kCausal].value.i != 0;
  p.window = s[kWindow].given ? std::min(s[kWindow].value.i, attention::kMaxWindow) : -1;
  p.sinks = attention::Optional(t[kSinks]);
  p.slopes = attention::Optional(t[kAlibiSlopes]);
  p.split_keys = false;
  if (Given(lse)) {
    p.lse = Data<float>(lse);
    p.lse_s = lse.strides[0], p.lse_h = lse.strides[1];
  }
  return p;
}

bool ValidOffsets(const int32_t* offsets, int64_t count, int64_t total, int64_t longest) {
  if (offsets[0] != 0) return false;
  for (int64_t i = 0; i + 1 < count; ++i) {
    const int64_t length = int64_t(offsets[i + 1]) - offsets[i];
    if (length < 0 || length > longest) return false;
  }
  return offsets[count - 1] <= total;
}

Problem SequenceProblem(Problem p, const int32_t* q, const int32_t* kv, int64_t s) {
  const int64_t size = ByteSize(p.dtype);
  p.b = 1;
  p.s_q = q[s + 1] - q[s];
  p.s_kv = kv[s + 1] - kv[s];
  p.q.data += q[s] * p.q.seq * size;
  p.k.data += kv[s] * p.k.seq * size;
  p.v.data += kv[s] * p.v.seq * size;
  p.out.data += q[s] * p.out.seq * size;
  if (p.lse) p.lse += q[s] * p.lse_s;
  return p;
}

int32_t Launch(const lz_kernel_args* args) {
  const Problem all = MakeProblem(args);
  const auto* q = Data<const int32_t>(args->tensors[kCuSeqlensQ]);
  const auto* kv = Data<const int32_t>(args->tensors[kCuSeqlensKV]);
  const int64_t offsets = args->axes[kOffsets], sequences = offsets - 1;
  const int64_t total_q = args->axes[kTotalQ], total_kv = args->axes[kTotalKV];
  if (!ValidOffsets(q, offsets, total_q, args->scalars[kMaxSeqlenQ].value.i)) return 1;
  if (!ValidOffsets(kv, offsets, total_kv, args->scalars[kMaxSeqlenKV].value.i)) return 1;
  attention::ClearRest(all, q[sequences], total_q);
  return attention::RunSequences(all, sequences, args, [&](int64_t i) { return SequenceProblem(all, q, kv, i); });
}

uint64_t Workspace(const lz_kernel_args* args) { return attention::WorkspaceOf(MakeProblem(args), args); }

constexpr std::array<std::string_view, 9> kAccepts = {
    "causal", "scale", "window", "softcap", "sinks", "alibi_slopes", "max_seqlen_q", "max_seqlen_kv", "return_lse"};
constexpr KernelSpec Spec(std::string_view id) {
  return CpuSpec(id, &Launch, {.accepts = kAccepts, .numerics = "fp32", .workspace = &Workspace});
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("hwy.attention.standard.prefill.ragged"),
    Spec("hwy.attention.gqa.prefill.ragged"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
