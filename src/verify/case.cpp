#include "verify/case.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "verify/fill.h"

namespace lz::verify {
namespace {

Status Bad(std::string_view field, std::string wanted, std::string_view got) {
  return Status(StatusCode::kInvalidRequest, {.field = std::string(field),
                                              .wanted = std::move(wanted),
                                              .got = "'" + std::string(got) + "'",
                                              .fix = "see tests/conformance/README.md"});
}

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

// Returns the text up to `end`, which is consumed too, or all of it if there is none.
std::string_view Take(std::string_view& s, char end) {
  const size_t at = s.find(end);
  const std::string_view head = s.substr(0, at);
  s = at == s.npos ? std::string_view() : s.substr(at + 1);
  return head;
}

std::optional<double> Number(std::string_view s) {
  s = Trim(s);
  double value = 0;
  if (!s.empty() && s.front() == '+') s.remove_prefix(1);
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);  // accepts inf and nan
  if (error != std::errc() || end != s.data() + s.size() || s.empty()) return std::nullopt;
  return value;
}
std::optional<int64_t> Integer(std::string_view s) {
  s = Trim(s);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end != s.data() + s.size() || s.empty()) return std::nullopt;
  return value;
}

struct Marks {
  bool pad = false, transposed = false, offset = false, expand = false, strided = false;
};

constexpr int64_t kMaxSpan = int64_t{1} << 48;  // elements of a case's tensor, with empty axes counted as 1

// Elements between two rows of a padded tensor: odd, so that rows lose their alignment.
constexpr int64_t kPad = 5;

std::vector<int64_t> StridesOf(const std::vector<int64_t>& shape, const Marks& m) {
  std::vector<size_t> order(shape.size());  // axes from outermost to innermost in memory
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (m.transposed && order.size() >= 2) std::swap(order[order.size() - 1], order[order.size() - 2]);
  std::vector<int64_t> strides(shape.size());
  int64_t stride = m.strided ? 2 : 1;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t axis = order[i];
    const bool expanded = m.expand && axis == 0;
    strides[axis] = expanded ? 0 : stride;
    if (!expanded) stride *= std::max<int64_t>(1, shape[axis]);
    if (m.pad && i + 1 == order.size()) stride += kPad;
  }
  return strides;
}

bool IsInteger(DType type) { return Info(type).dlpack_code <= 1 || type == DType::kBool; }

// "~uniform(-1,1)", "~probs".
Status ParseFill(std::string_view name, std::string_view text, Filling* f) {
  std::string_view rest = text;
  const std::string_view kind = Take(rest, '(');
  if (kind == "normal") {
    f->distribution = Distribution::kNormal;
    return {};
  }
  if (kind == "probs") {
    f->distribution = Distribution::kProbs;
    return {};
  }
  const std::string_view lo = Take(rest, ','), hi = Take(rest, ')');
  const auto a = Number(lo), b = Number(hi);
  const bool known = kind == "uniform" || kind == "int" || kind == "distinct";
  if (!known || !a || !b || !rest.empty()) {
    return Bad(name, "~normal, ~uniform(lo,hi), ~int(lo,hi), ~distinct(lo,hi) or ~probs", text);
  }
  f->distribution = kind == "int"        ? Distribution::kInt
                    : kind == "distinct" ? Distribution::kDistinct
                                         : Distribution::kUniform;
  f->lo = *a;
  f->hi = *b;
  return {};
}

Status ParseValues(std::string_view name, std::string_view text, int64_t numel, Filling* f) {
  f->distribution = Distribution::kExplicit;
  while (!text.empty()) {
    const std::string_view item = Take(text, ',');
    const auto value = Number(item);
    if (!value) return Bad(name, "a number, inf or nan", item);
    f->values.push_back(*value);
  }
  if (int64_t(f->values.size()) == numel) return {};
  return Bad(name, std::to_string(numel) + " values", std::to_string(f->values.size()));
}

Status ParseMark(std::string_view name, std::string_view mark, Marks* marks, Filling* f) {
  if (mark == "pad") {
    marks->pad = true;
  } else if (mark == "transposed") {
    marks->transposed = true;
  } else if (mark == "offset") {
    marks->offset = true;
  } else if (mark == "expand") {
    marks->expand = true;
  } else if (mark == "strided") {
    marks->strided = true;
  } else if (mark == "nan") {
    f->nan = true;
  } else {
    return Bad(name, "@pad, @transposed, @offset, @nan, @expand or @strided", mark);
  }
  return {};
}

// "f32[2,3]~uniform(-1,1)@pad".
Status ParseTensor(std::string_view name, std::string_view text, Fills fills, uint64_t seed, OwnedTensor* tensor) {
  std::string_view rest = text;
  const std::string_view type_name = Take(rest, '[');
  const DType type = DTypeFromName(type_name);
  if (type == DType::kUnknown) return Bad(name, "a dtype such as f32[2,3]", type_name);
  const size_t close = rest.find(']');
  if (close == rest.npos) return Bad(name, "dtype[sizes]", text);
  std::string_view sizes = rest.substr(0, close);
  rest.remove_prefix(close + 1);
  std::vector<int64_t> shape;
  int64_t numel = 1, span = 1;
  while (!sizes.empty()) {
    const std::string_view item = Take(sizes, ',');
    const auto size = Integer(item);
    if (!size || *size < 0) return Bad(name, "a size of at least 0", item);
    // An empty axis does not reduce the others: strides are products of all of them.
    if (__builtin_mul_overflow(span, std::max<int64_t>(1, *size), &span) || span > kMaxSpan) {
      return Bad(name, "at most " + std::to_string(kMaxSpan) + " elements", item);
    }
    shape.push_back(*size);
    numel *= *size;
  }
  Filling filling;
  if (IsInteger(type)) filling = {.distribution = Distribution::kInt, .lo = 0, .hi = 2};
  Marks marks;
  while (!rest.empty()) {
    const char kind = rest.front();
    rest.remove_prefix(1);
    if (kind == '{') {
      LZ_RETURN_IF_ERROR(ParseValues(name, Take(rest, '}'), numel, &filling));
      continue;
    }
    const std::string_view word = rest.substr(0, rest.find_first_of("@~{"));
    rest.remove_prefix(word.size());
    if (kind == '~') {
      LZ_RETURN_IF_ERROR(ParseFill(name, word, &filling));
    } else if (kind == '@') {
      LZ_RETURN_IF_ERROR(ParseMark(name, word, &marks, &filling));
    } else {
      return Bad(name, "~fill, {values} or @mark", text);
    }
  }
  std::vector<int64_t> strides = StridesOf(shape, marks);
  *tensor = OwnedTensor(type, std::move(shape), std::move(strides), marks.offset ? 1 : 0);
  if (fills == Fills::kAll || IsInteger(type)) Fill(filling, seed, tensor);
  return {};
}

Status ParseScalar(const Param& p, std::string_view text, lz_scalar* s) {
  s->given = 1;
  if (p.kind == ParamKind::kFloat) {
    const auto value = Number(text);
    if (!value) return Bad(p.name, "a number", text);
    s->value.f = *value;
  } else if (p.kind == ParamKind::kInt) {
    const auto value = Integer(text);
    if (!value) return Bad(p.name, "an integer", text);
    s->value.i = *value;
  } else if (p.kind == ParamKind::kBool) {
    if (text != "true" && text != "false") return Bad(p.name, "true or false", text);
    s->value.i = text == "true";
  } else {
    std::string_view choices = p.choices;
    for (int64_t i = 0; !choices.empty(); ++i) {
      if (Take(choices, '|') != text) continue;
      s->value.i = i;
      return {};
    }
    return Bad(p.name, "one of " + std::string(p.choices), text);
  }
  return {};
}

Status ParseArgument(std::string_view name, std::string_view value, Fills fills, uint64_t seed, Case* c) {
  const Operation& op = *c->op;
  if (const auto i = op.InputIndex(name)) {
    return ParseTensor(name, value, fills, seed + *i, &c->tensors[*i]);
  }
  if (const auto i = op.ScalarIndex(name)) return ParseScalar(op.scalar(*i), value, &c->scalars[*i]);
  if (name == "layout" && !op.layout_names().empty()) {
    const auto at = std::find(op.layout_names().begin(), op.layout_names().end(), value);
    if (at == op.layout_names().end()) return Bad(name, "a layout of the contract", value);
    c->layout = int32_t(at - op.layout_names().begin());
    return {};
  }
  return Bad(name, "a parameter of " + std::string(op.name()), name);
}

}  // namespace

Request Case::MakeRequest() {
  Request r(*op);
  for (size_t i = 0; i < tensors.size(); ++i) r.tensors[i] = tensors[i].tensor();
  for (size_t i = 0; i < scalars.size(); ++i) r.scalars[i] = scalars[i];
  r.layout = layout;
  return r;
}

Result<Case> ParseCase(const Operation& op, std::string_view line, Fills fills) {
  Case c;
  c.op = &op;
  c.text = std::string(Trim(line));
  c.tensors.resize(op.num_inputs());
  c.scalars.resize(op.num_scalars());
  const uint64_t seed = HashText(c.text);
  std::string_view rest = c.text;
  if (rest.starts_with("refuse ")) {
    rest.remove_prefix(7);
    c.refused = std::string(Trim(Take(rest, ':')));
  }
  while (!(rest = Trim(rest)).empty()) {
    const std::string_view word = Take(rest, ' ');
    const size_t equals = word.find('=');
    if (equals == word.npos) return Bad(word, "name=value", word);
    Status status = ParseArgument(word.substr(0, equals), word.substr(equals + 1), fills, seed, &c);
    if (!status.ok()) return status;
  }
  return c;
}

}  // namespace lz::verify
