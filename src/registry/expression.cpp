// Recursive descent into postfix: sum of products of atoms.
#include "registry/expression.h"

#include <cctype>
#include <limits>

namespace lz {
namespace {
constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
constexpr size_t kMaxDepth = 32;  // depth of the evaluation stack
}  // namespace

class ExpressionParser {
 public:
  ExpressionParser(std::string_view text, const std::function<std::optional<int>(std::string_view)>& resolve)
      : text_(text), resolve_(resolve) {}

  Result<Expression> Run() {
    expression_.text_ = std::string(text_);
    if (!Sum() || !error_.empty() || (Skip(), at_ != text_.size())) {
      if (error_.empty()) error_ = "an integer expression of axes";
      return Status(StatusCode::kInternal, {.field = std::string(text_), .wanted = error_});
    }
    if (expression_.steps_.size() > kMaxDepth) {
      return Status(StatusCode::kInternal, {.field = std::string(text_), .wanted = "at most 32 names and operators"});
    }
    return std::move(expression_);
  }

 private:
  using Code = Expression::Code;
  void Skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool Take(char c) {
    Skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Sum() {
    if (!Product()) return false;
    while (true) {
      const bool add = Take('+');
      if (!add && !Take('-')) return true;
      if (!Product()) return false;
      expression_.steps_.push_back({add ? Code::kAdd : Code::kSub, 0});
    }
  }
  bool Product() {
    if (!Atom()) return false;
    while (true) {
      const bool mul = Take('*');
      if (!mul && !Take('/')) return true;
      if (!Atom()) return false;
      expression_.steps_.push_back({mul ? Code::kMul : Code::kDiv, 0});
    }
  }
  bool Atom() {
    if (Take('(')) {
      if (++depth_ > kMaxDepth) {  // each level is several calls of this parser
        error_ = "at most 32 parentheses in each other";
        return false;
      }
      return Sum() && Take(')') && depth_-- > 0;
    }
    Skip();
    const size_t start = at_;
    if (text_.substr(at_, 3) == "...") {
      at_ += 3;
    } else {
      while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    }
    const std::string_view word = text_.substr(start, at_ - start);
    if (word.empty()) return false;
    if (const std::optional<int64_t> value = Number(word)) {
      expression_.steps_.push_back({Code::kConstant, *value});
      return true;
    }
    const std::optional<int> variable = resolve_(word);
    if (!variable) {
      error_ = "a known axis instead of '" + std::string(word) + "'";
      return false;
    }
    expression_.steps_.push_back({Code::kVariable, *variable});
    return !Take('[') || List();
  }
  bool List() {
    std::vector<int64_t> list;
    do {
      Skip();
      const size_t start = at_;
      while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
      const std::optional<int64_t> value = Number(text_.substr(start, at_ - start));
      if (!value) return false;
      list.push_back(*value);
    } while (Take(','));
    expression_.steps_.push_back({Code::kLookup, int64_t(expression_.lists_.size())});
    expression_.lists_.push_back(std::move(list));
    return Take(']');
  }
  static std::optional<int64_t> Number(std::string_view word) {
    if (word.empty()) return std::nullopt;
    int64_t value = 0;
    for (char c : word) {
      if (!std::isdigit(static_cast<unsigned char>(c)) || value > kMax / 16) return std::nullopt;
      value = value * 10 + (c - '0');
    }
    return value;
  }

  std::string_view text_;
  const std::function<std::optional<int>(std::string_view)>& resolve_;
  Expression expression_;
  std::string error_;
  size_t at_ = 0, depth_ = 0;
};

Result<Expression> Expression::Parse(std::string_view text,
                                     const std::function<std::optional<int>(std::string_view)>& resolve) {
  return ExpressionParser(text, resolve).Run();
}

int64_t Expression::Evaluate(const int64_t* variables) const {
  int64_t stack[kMaxDepth + 1];
  size_t top = 0;
  for (const Step& s : steps_) {
    switch (s.code) {
      case Code::kConstant: stack[top++] = s.value; continue;
      case Code::kVariable: stack[top++] = variables[s.value]; continue;
      case Code::kLookup: {
        const std::vector<int64_t>& list = lists_[size_t(s.value)];
        const int64_t at = stack[top - 1];
        stack[top - 1] = at >= 0 && at < int64_t(list.size()) ? list[size_t(at)] : 0;
        continue;
      }
      default: break;
    }
    const int64_t b = stack[--top], a = stack[top - 1];
    int64_t r = 0;
    switch (s.code) {
      case Code::kAdd:
        if (__builtin_add_overflow(a, b, &r)) r = a < 0 ? kMin : kMax;
        break;
      case Code::kSub:
        if (__builtin_sub_overflow(a, b, &r)) r = a < 0 ? kMin : kMax;
        break;
      case Code::kMul:
        if (__builtin_mul_overflow(a, b, &r)) r = (a < 0) != (b < 0) ? kMin : kMax;
        break;
      case Code::kDiv: r = b == 0 ? 0 : (a == kMin && b == -1 ? kMax : a / b); break;
      default: break;
    }
    stack[top - 1] = r;
  }
  return stack[0];
}

std::optional<int> Expression::AsVariable() const {
  if (steps_.size() == 1 && steps_[0].code == Code::kVariable) return int(steps_[0].value);
  return std::nullopt;
}

}  // namespace lz
