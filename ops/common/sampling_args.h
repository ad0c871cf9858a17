// The arguments of one sample_* call, whatever filters its contract has: found by name once, then read by row.
//   const SampleArguments call(kContract, *args);  const std::optional<Filters> f = call.FiltersOf(row);
#pragma once

#include <optional>
#include <string_view>

#include "core/contract.h"
#include "core/view.h"
#include "ops/common/index.h"
#include "ops/common/philox.h"
#include "ops/common/sampling_contract.h"
#include "ops/common/sampling_math.h"

namespace lz::sampling {

// The scalar parameter `name` of the call, nullptr if the contract has none.
inline const lz_scalar* FindScalar(const Contract& contract, const lz_kernel_args& args, std::string_view name) {
  int index = 0;
  for (const Param& p : contract.params) {
    if (p.kind == ParamKind::kTensor) continue;
    if (p.name == name) return &args.scalars[index];
    ++index;
  }
  return nullptr;
}
// The same for tensors, also absent ones.
inline const lz_tensor* FindTensor(const Contract& contract, const lz_kernel_args& args, std::string_view name) {
  int index = 0;
  for (const Param& p : contract.params) {
    if (p.kind != ParamKind::kTensor) continue;
    if (p.name == name && args.tensors[index].ndim >= 0) return &args.tensors[index];
    ++index;
  }
  return nullptr;
}

// The random numbers of one call: `uniform` if it was given, otherwise Philox by (seed, offset).
class Draws {
 public:
  Draws(const Contract& contract, const lz_kernel_args& args)
      : uniform_(FindTensor(contract, args, "uniform")),
        seed_(FindScalar(contract, args, "seed")->value.i),
        offset_(FindScalar(contract, args, "offset")->value.i) {}

  // For sample_* operations: the draw of the row's token.
  double OfRow(int64_t row) const { return uniform_ ? Given(row) : PhiloxUniform(seed_, offset_, row, 0); }
  // For speculative_sample: the draw that accepts draft i of the row, and the draw of the token at position i.
  double Accepting(int64_t row, int64_t i) const {
    return uniform_ ? Given((row * uniform_->shape[1] + i) * 2)
                    : PhiloxUniform(seed_, offset_, row, uint32_t(1 + 2 * i));
  }
  double Drawing(int64_t row, int64_t i) const {
    return uniform_ ? Given((row * uniform_->shape[1] + i) * 2 + 1)
                    : PhiloxUniform(seed_, offset_, row, uint32_t(2 + 2 * i));
  }
  // True if every given number is in [0, 1).
  bool Valid() const {
    int64_t count = uniform_ != nullptr;
    for (int32_t d = 0; uniform_ && d < uniform_->ndim; ++d) count *= uniform_->shape[d];
    while (count > 0 && IsUniform(Given(count - 1))) --count;
    return count == 0;
  }

 private:
  double Given(int64_t index) const { return View(*uniform_).Load(ElementOffset(*uniform_, index)); }

  const lz_tensor* uniform_;
  int64_t seed_, offset_;
};

class SampleArguments {
 public:
  SampleArguments(const Contract& contract, const lz_kernel_args& args)
      : logits(args.tensors[0]),
        token(args.tensors[CountTensors(contract)]),
        draws(contract, args),
        temperature_(contract, args, "temperature", "row_temperature"),
        k_(contract, args, "k", "row_k"),
        p_(contract, args, "p", "row_p"),
        min_p_(contract, args, "min_p", "row_min_p") {}

  // nullopt if the row has a value for which a scalar would be refused.
  std::optional<Filters> FiltersOf(int64_t row) const {
    Filters f;
    temperature_.Get(row, &f.temperature);
    k_.Get(row, &f.k);
    p_.Get(row, &f.p);
    min_p_.Get(row, &f.min_p);
    if (IsTemperature(f.temperature) && f.k >= 1 && IsProbability(f.p) && IsProbability(f.min_p)) return f;
    return std::nullopt;
  }

  const lz_tensor& logits;
  const lz_tensor& token;
  const Draws draws;

 private:
  static size_t CountTensors(const Contract& contract) {
    size_t count = 0;
    for (const Param& p : contract.params) count += p.kind == ParamKind::kTensor;
    return count;
  }

  struct Value {
    Value(const Contract& contract, const lz_kernel_args& args, std::string_view name, std::string_view row_name)
        : all(FindScalar(contract, args, name)), rows(FindTensor(contract, args, row_name)) {}
    void Get(int64_t row, double* value) const {
      if (rows) *value = View(*rows).Load(ElementOffset(*rows, row));
      if (!rows && all && all->given) *value = all->value.f;
    }
    void Get(int64_t row, int64_t* value) const {
      if (rows) *value = View(*rows).LoadInt(ElementOffset(*rows, row));
      if (!rows && all && all->given) *value = all->value.i;
    }
    const lz_scalar* all;
    const lz_tensor* rows;
  };
  Value temperature_, k_, p_, min_p_;
};

// The result of a launch; `all_answered`: every row has a token.
inline int32_t Outcome(const lz_kernel_args& args, bool all_answered) {
  return all_answered || !(args.flags & LZ_KERNEL_STRICT) ? LZ_LAUNCH_DONE : LZ_LAUNCH_INVALID_DATA;
}

}  // namespace lz::sampling
