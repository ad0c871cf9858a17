// Runs one case with one kernel through the whole pipeline, locked to it by a policy scope as a caller would do, and
// compares the results with the operation's reference in FP64.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "verify/case.h"
#include "verify/compare.h"

namespace lz::verify {

enum class Verdict : uint8_t {
  kPassed,
  kFailed,
  kNotAdmitted,  // the kernel's rows refuse the call, or it belongs to another variant
};

struct LZ_VERIFY_API CaseResult {
  Verdict verdict = Verdict::kPassed;
  std::string text;     // the fault
  bool copied = false;  // inputs were made contiguous first
  std::vector<OutputReport> outputs;
};

// A `refuse` line: passes if binding or selection refuses the call for the field that it names. `parsed`: the status of
// ParseCase, which refuses values that the grammar cannot express.
LZ_VERIFY_API CaseResult RunRefusal(Engine& engine, Case& c);
// True if an error or refusal is about `field`.
LZ_VERIFY_API bool IsAbout(const Status& status, std::string_view field);

// The elements of a tensor in row-major order.
OwnedTensor CopyOf(const lz_tensor& t);

// Checks that the reference accepts the values of a prepared request, index tensors above all, by one launch.
LZ_VERIFY_API Status ReferenceAccepts(const Request& bound);

// The expected outputs: the reference's results, floats as doubles where the contract allows rounding. Tensors that the
// operation writes in place count as outputs: the reference writes into copies of its own.
class LZ_VERIFY_API Expected {
 public:
  // `bound`: a prepared request, before a kernel has run on it.
  static Result<Expected> Of(const Request& bound);
  // Compares outputs and written inputs bound to `r`; `numerics`: the kernel's class, or empty.
  std::vector<OutputReport> Compare(const Request& r, std::string_view numerics) const;
  // The name of the first output that is not bitwise equal; empty: none.
  std::string DifferenceFrom(const Expected& other) const;

 private:
  struct One {
    OwnedTensor given;          // original content of an input that is written in place, row-major
    OwnedTensor stored;         // in the output's dtype, row-major
    std::vector<double> exact;  // floats: with FP64 storage of this output only
  };
  OutputReport CompareOne(const Request& r, size_t tensor, std::string_view numerics) const;
  std::string_view NameOf(size_t tensor) const;

  const Operation* op_ = nullptr;
  std::vector<One> tensors_;  // by tensor of the operation: inputs (those written in place), then outputs
};

// `kernel` must belong to the case's operation; bindings run host kernels. `expected`, if given, keeps the reference's
// results for the next kernel on a fresh copy of the same case.
LZ_VERIFY_API CaseResult RunCase(Selector& selector, Case& c, const KernelEntry& kernel,
                                 std::optional<Result<Expected>>* expected = nullptr);
inline CaseResult RunCase(Engine& engine, Case& c, const KernelEntry& kernel,
                          std::optional<Result<Expected>>* expected = nullptr) {
  return RunCase(engine.selector(), c, kernel, expected);
}

}  // namespace lz::verify
