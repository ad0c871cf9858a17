// Integer expressions of axes and scalars: "b * h_q", "(hidden + 127) / 128", "n / format[1, 2]" (an integer selected
// by the value of a choice). Parsed once, evaluated per call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace lz {

class Expression {
 public:
  // `resolve` returns the variable index of a name, or nullopt. "..." is a name too.
  static Result<Expression> Parse(std::string_view text,
                                  const std::function<std::optional<int>(std::string_view)>& resolve);

  // Division rounds toward zero; a division by zero results in 0, as does an index past the end of a list.
  // Overflow saturates.
  int64_t Evaluate(const int64_t* variables) const;

  // The variable's index if the expression is one bare name.
  std::optional<int> AsVariable() const;
  const std::string& text() const { return text_; }

 private:
  enum class Code : uint8_t { kConstant, kVariable, kLookup, kAdd, kSub, kMul, kDiv };
  struct Step {
    Code code;
    int64_t value;  // constant, variable index, or list index of a lookup
  };
  friend class ExpressionParser;
  std::string text_;
  std::vector<Step> steps_;                  // postfix
  std::vector<std::vector<int64_t>> lists_;  // lists of the lookups
};

}  // namespace lz
