// Integer expressions of contracts: precedence, rounding, lists by a choice, and texts that are refused.
#include "registry/expression.h"

#include <gtest/gtest.h>

namespace lz {
namespace {

std::optional<int> Resolve(std::string_view name) {
  if (name == "n") return 0;
  if (name == "format") return 1;
  return std::nullopt;
}

int64_t Value(std::string_view text, int64_t n, int64_t format) {
  auto expression = Expression::Parse(text, Resolve);
  EXPECT_TRUE(expression.ok()) << expression.status().Text();
  const int64_t variables[] = {n, format};
  return expression->Evaluate(variables);
}

TEST(Expression, ComputesIntegers) {
  EXPECT_EQ(Value("(n + 127) / 128 * 2 - 1", 129, 0), 3);
  EXPECT_EQ(Value("n / format", 5, 0), 0);
}

TEST(Expression, PicksANumberByAChoice) {
  EXPECT_EQ(Value("n / format[1, 2, 4]", 8, 0), 8);
  EXPECT_EQ(Value("n / format[1, 2, 4]", 8, 2), 2);
  EXPECT_EQ(Value("format[3]", 8, 7), 0) << "beyond the list";
}

TEST(Expression, RefusesWhatItCannotRead) {
  for (std::string_view text : {"", "n +", "m", "format[", "format[]", "format[1 2]", "format[n]", "n)", "[1]"}) {
    EXPECT_FALSE(Expression::Parse(text, Resolve).ok()) << text;
  }
}

TEST(Expression, BoundsItsParentheses) {
  const auto nested = [](size_t levels) { return std::string(levels, '(') + "n" + std::string(levels, ')'); };
  EXPECT_EQ(Value(nested(32) + " + " + nested(32), 3, 0), 6);
  for (const size_t levels : {33, 1000, 1000000}) {
    EXPECT_FALSE(Expression::Parse(nested(levels), Resolve).ok()) << levels;
    EXPECT_FALSE(Expression::Parse(std::string(levels, '('), Resolve).ok()) << levels;
  }
}

}  // namespace
}  // namespace lz
