#include "pipeline/dispatch_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/view.h"

namespace lz {
namespace {

constexpr char kGuard = char(0xA5);

bool IsFloat(const lz_tensor& t) { return t.ndim >= 0 && (kFloats >> int(DTypeOf(t)) & 1); }

// Returns the row-major index of the first value for which `is` is true; -1: none.
template <class Is>
int64_t FirstOf(const lz_tensor& t, Is&& is) {
  const View v(t);
  const int64_t last = t.ndim > 0 ? t.shape[t.ndim - 1] : 1, rows = v.rows();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t offset = v.RowOffset(row);
    for (int64_t i = 0; i < last; ++i) {
      if (is(v.Load(offset + (t.ndim > 0 ? i * v.stride(-1) : 0)))) return row * last + i;
    }
  }
  return -1;
}

bool InputsAreFinite(const Request& r) {
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (IsFloat(t) && FirstOf(t, [](double x) { return !std::isfinite(x); }) >= 0) return false;
  }
  return true;
}

// True if the operation's reference has a NaN in this output too.
bool ReferenceAgrees(const KernelEntry* reference, const Request& r, lz_kernel_args args, size_t output) {
  if (!reference || reference->spec.call != CallKind::kNative || reference->spec.workspace) return true;
  std::array<lz_tensor, kMaxTensors> tensors = r.tensors;
  std::vector<std::vector<double>> memory;
  std::vector<std::vector<int64_t>> strides;
  for (size_t i = r.op->num_inputs(); i < r.op->num_inputs() + r.op->num_outputs(); ++i) {
    lz_tensor& t = tensors[i];
    if (t.ndim < 0) continue;
    int64_t n = 1;
    std::vector<int64_t>& s = strides.emplace_back(size_t(t.ndim));
    for (int32_t d = t.ndim - 1; d >= 0; --d) s[size_t(d)] = n, n *= t.shape[d];
    t.data = memory.emplace_back(size_t(n) + 1).data();  // 8 bytes per element are enough for any dtype
    t.byte_offset = 0;
    t.strides = s.data();
  }
  args.tensors = tensors.data();
  args.workspace = nullptr;
  args.workspace_bytes = 0;
  if (reference->spec.launch(&args) != LZ_LAUNCH_DONE) return true;
  return FirstOf(tensors[r.op->num_inputs() + output], [](double x) { return std::isnan(x); }) >= 0;
}

Status Fault(const KernelEntry& kernel, const Request& r, std::string wanted, std::string got) {
  return Status(StatusCode::kKernelFailed, {.field = std::string(r.op->name()) + ": kernel " + kernel.id,
                                            .wanted = std::move(wanted),
                                            .got = std::move(got),
                                            .fix = "deny or unlock the kernel and report it; found by debug: true"});
}

}  // namespace

void PlantGuard(char* guard) { std::memset(guard, kGuard, kGuardBytes); }

Status CheckDispatch(const Plan& plan, const KernelEntry& kernel, const Request& r, const lz_kernel_args& args,
                     const char* guard) {
  if (std::any_of(guard, guard + kGuardBytes, [](char c) { return c != kGuard; })) {
    return Fault(kernel, r, "writes within its workspace of " + std::to_string(args.workspace_bytes) + " bytes",
                 "writes beyond it");
  }
  if (r.where.type != 1 || kernel.spec.reference) return {};
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    const lz_tensor& t = r.tensors[r.op->num_inputs() + o];
    if (!IsFloat(t)) continue;
    const int64_t at = FirstOf(t, [](double x) { return std::isnan(x); });
    if (at < 0 || !InputsAreFinite(r) || ReferenceAgrees(plan.reference, r, args, o)) continue;
    return Fault(kernel, r, "no NaN in " + std::string(r.op->contract().outputs[o].name) + " from finite inputs",
                 "one at element " + std::to_string(at));
  }
  return {};
}

}  // namespace lz
