#include "verify/random.h"

#include <algorithm>
#include <cctype>

#include "core/limits.h"
#include "engine/engine.h"
#include "verify/run.h"

namespace lz::verify {
namespace {

constexpr int64_t kMaxElements = 1 << 13;  // per tensor: a call takes microseconds
constexpr int64_t kMaxWork = 1 << 15;      // product of all axes: iterations of a reference
constexpr int kRounds = 60;                // attempts of drawing again
constexpr double kFresh = 0.1;             // fraction of calls that are new drafts
constexpr double kVaried = 0.25;           // fraction of the pieces of the others that are drawn again
constexpr int kLaunches = 6;               // launches of the reference until its index tensors fit

bool IsFloat(DType type) { return Info(type).dlpack_code != 0 && Info(type).dlpack_code != 1 && type != DType::kBool; }

// One axis in sixteen is empty; half of the others are powers of two, so that divisors match.
int64_t DrawSize(Generator& g) {
  const int64_t kind = g.Below(16);
  if (kind == 0) return 0;
  if (kind < 8) return int64_t{1} << g.Below(7);
  if (kind == 8) return g.Pick<int64_t>({64, 128, 256});
  return g.Pick<int64_t>({1, 1, 2, 3, 5, 6, 7, 9, 12, 15, 17, 31, 33, 63, 65, 100});
}

DType PickDType(Generator& g, DTypeMask mask) {
  std::vector<DType> types;
  for (size_t t = 1; t < size_t(DType::kCount); ++t) {
    if (mask >> t & 1) types.push_back(DType(t));
  }
  return types.empty() ? DType::kUnknown : types[size_t(g.Below(int64_t(types.size())))];
}

int64_t Product(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (int64_t size : sizes) n = size != 0 && n > (int64_t{1} << 40) / size ? int64_t{1} << 40 : n * size;
  return n;
}

std::string Join(const std::vector<int64_t>& values, char open, char close) {
  std::string text(1, open);
  for (size_t i = 0; i < values.size(); ++i) text += (i ? "," : "") + std::to_string(values[i]);
  return text + close;
}

// Numbers that are words of their own: not the 16 of "float16".
std::vector<int64_t> Numbers(std::string_view text) {
  std::vector<int64_t> numbers;
  bool in_word = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (digit && !in_word) {
      int64_t value = 0;
      for (; i < text.size() && text[i] >= '0' && text[i] <= '9' && value < kMaxWork; ++i) {
        value = value * 10 + (text[i] - '0');
      }
      numbers.push_back(value);
    }
    in_word = i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_');
  }
  return numbers;
}

std::string FloatFill(Generator& g) {
  const int64_t kind = g.Below(32);
  if (kind < 22) return "";
  if (kind < 24) return "~uniform(0,0)";
  if (kind < 26) return "~uniform(-0.001,0.001)";
  if (kind < 28) return "~uniform(-4,4)";
  if (kind < 30) return "~uniform(0,1)";
  return "@nan";
}

}  // namespace

RandomCalls::Draft RandomCalls::NewDraft() {
  Draft draft;
  const auto seeds = [&](std::vector<Piece>& pieces, size_t count) {
    pieces.resize(count);
    for (Piece& p : pieces) p.seed = generator_.Next(), p.values = generator_.Next();
  };
  seeds(draft.axes, op_.axes().size());
  seeds(draft.tensors, op_.num_inputs());
  seeds(draft.scalars, op_.num_scalars());
  draft.leading.seed = generator_.Next();
  draft.layout.seed = generator_.Next();
  for (size_t i = 0; i < op_.num_inputs(); ++i)
    draft.tensors[i].absent = op_.input(i).optional && generator_.Chance(0.5);
  for (size_t i = 0; i < op_.num_scalars(); ++i) {
    const Param& p = op_.scalar(i);
    draft.scalars[i].absent = (p.optional || p.has_default) && generator_.Chance(0.6);
  }
  return draft;
}

// Draws every value again, and some of the other pieces.
RandomCalls::Draft RandomCalls::Varied(Draft draft) {
  const auto vary = [&](Piece& piece, bool may_be_absent) {
    if (!generator_.Chance(kVaried)) return;
    piece.seed = generator_.Next(), piece.size = -1;
    if (may_be_absent) piece.absent = generator_.Chance(0.5);
  };
  for (Piece& axis : draft.axes) vary(axis, false);
  for (size_t i = 0; i < op_.num_inputs(); ++i) {
    vary(draft.tensors[i], op_.input(i).optional);
    draft.tensors[i].values = generator_.Next();
  }
  for (size_t i = 0; i < op_.num_scalars(); ++i) {
    vary(draft.scalars[i], op_.scalar(i).optional || op_.scalar(i).has_default);
  }
  vary(draft.leading, false);
  vary(draft.layout, false);
  return draft;
}

void RandomCalls::Resolve(Draft& draft) const {
  draft.variables.assign(kMaxAxes + kMaxScalars + kMaxAxes, 0);
  for (size_t a = 0; a < draft.axes.size(); ++a) {
    Generator g(draft.axes[a].seed);
    draft.variables[a] = draft.axes[a].size >= 0 ? draft.axes[a].size : DrawSize(g);
  }
  Generator g(draft.leading.seed);
  draft.lead.clear();
  for (int64_t n = g.Below(4); n > 0; --n) draft.lead.push_back(g.Chance(0.05) ? 0 : 1 + g.Below(n == 1 ? 20 : 4));
  if (op_.leading_axis() >= 0) draft.variables[size_t(op_.leading_axis())] = Product(draft.lead);
  // Expressions read the scalars as the line has them.
  for (size_t i = 0; i < draft.scalars.size(); ++i) {
    const Param& p = op_.scalar(i);
    int64_t& value = draft.variables[kMaxAxes + i];
    value = p.int_default;
    if (draft.scalars[i].absent || p.kind == ParamKind::kFloat) continue;
    const std::string text = ScalarText(i, draft.scalars[i]);
    if (p.kind == ParamKind::kInt) value = std::stoll(text);
    if (p.kind == ParamKind::kBool) value = text == "true";
    if (p.kind == ParamKind::kChoice) {
      const std::string_view before = p.choices.substr(0, ("|" + std::string(p.choices) + "|").find("|" + text + "|"));
      value = std::count(before.begin(), before.end(), '|');
    }
  }
}

DType RandomCalls::DTypeOf(const Draft& draft, size_t i) const {
  Generator g(draft.tensors[i].seed);
  const int other = op_.same_dtype(i);
  if (other >= 0 && g.Chance(0.97)) return DTypeOf(draft, size_t(other));
  return PickDType(g, op_.input(i).dtypes);
}

// The shape of a tensor of any rank: mostly some axes of the call in order, and one more; often the previous tensor's.
std::vector<int64_t> RandomCalls::AnyShape(const Draft& draft, size_t i) const {
  Generator g(draft.tensors[i].seed + 1);
  if (i > 0 && op_.input_shapes()[i - 1].any_rank && g.Chance(0.6)) return AnyShape(draft, i - 1);
  std::vector<int64_t> shape;
  for (size_t a = 0; a < draft.axes.size() && shape.size() < 4; ++a) {
    if (g.Chance(0.35)) shape.push_back(draft.variables[a]);
  }
  if (g.Chance(0.6) && !draft.axes.empty()) {
    const int64_t size = draft.variables[size_t(g.Below(int64_t(draft.axes.size())))];
    shape.push_back(g.Pick<int64_t>({size, size / 2, DrawSize(g)}));
  }
  return shape;
}

std::vector<int64_t> RandomCalls::ShapeOf(const Draft& draft, size_t i) const {
  const ShapeProgram& program = op_.input_shapes()[i];
  Generator g(draft.tensors[i].seed + 1);
  std::vector<int64_t> shape;
  if (program.any_rank) return AnyShape(draft, i);
  if (program.leading) shape = draft.lead;
  for (const Dim& dim : program.dims) {
    int64_t size = 0;
    switch (dim.kind) {
      case Dim::Kind::kAxis: size = draft.variables[size_t(dim.axis)]; break;
      case Dim::Kind::kExpression:
        size = op_.expressions()[size_t(dim.expression)].Evaluate(draft.variables.data());
        break;
      case Dim::Kind::kAny: size = DrawSize(g); break;
    }
    shape.push_back(std::max<int64_t>(0, size));
  }
  if (op_.input(i).broadcast) {
    for (int64_t& size : shape) size = g.Chance(0.25) ? 1 : size;
    shape.erase(shape.begin(), shape.begin() + (g.Chance(0.6) ? 0 : g.Below(int64_t(shape.size()) + 1)));
  }
  return shape;
}

// Indices, lengths and offsets look alike in a contract: values below an axis, ramps, sums that end at an axis. A
// router names an expert at most once per token: with an expert named twice and weights that cancel, no nearby input
// has the rounding error of the sum.
std::string RandomCalls::FillText(const Draft& draft, std::string_view name, Generator& g, DType type,
                                  int64_t numel) const {
  if (IsFloat(type)) {
    if (name.ends_with("probs")) return "~probs";
    if (name == "uniform") return "~uniform(0,0.999)";
    return name.ends_with("_sum") ? "~uniform(0.1,4)" : FloatFill(g);  // a sum of exponentials is positive
  }
  if (type == DType::kBool) return g.Pick<const char*>({"", "", "~int(0,1)", "~int(1,2)"});
  if (type == DType::kU8) return g.Chance(0.8) ? "~int(0,256)" : "~int(0,2)";
  if (type == DType::kI8) return "~int(-128,128)";
  int64_t bound = 1;
  for (int tries = 0; tries < 3 && bound <= 1 && !draft.axes.empty(); ++tries) {
    bound = draft.variables[size_t(g.Below(int64_t(draft.axes.size())))];
  }
  if (name == "expert_ids") return "~distinct(0," + std::to_string(std::max<int64_t>(1, bound)) + ")";
  const int64_t kind = g.Below(16);
  if (kind == 0) return "~int(-3,1000)";
  if (kind < 3) return "~int(0,1)";
  if (kind < 8 || numel == 0 || numel > 300) return "~int(0," + std::to_string(std::max<int64_t>(1, bound)) + ")";
  std::vector<int64_t> values(static_cast<size_t>(numel));
  for (int64_t n = 0; n < numel; ++n) values[size_t(n)] = kind < 11 ? g.Below(bound + 1) : kind < 13 ? n : bound;
  if (kind < 11) {
    std::sort(values.begin(), values.end());
    if (g.Chance(0.8)) values.front() = 0, values.back() = numel > 1 ? bound : 0;
  } else if (kind == 12) {
    for (size_t n = values.size(); n > 1; --n) std::swap(values[n - 1], values[size_t(g.Below(int64_t(n)))]);
  }
  return Join(values, '{', '}');
}

// In the order of axes of the draft's layout.
std::vector<int64_t> RandomCalls::StoredShape(const Draft& draft, size_t i, Fault fault) const {
  std::vector<int64_t> shape = ShapeOf(draft, i);
  if (fault == Fault::kRank) {
    const bool leading = op_.input_shapes()[i].leading;
    leading ? shape.resize(op_.input_shapes()[i].dims.size() - 1)
            : shape.resize(op_.input_shapes()[i].dims.size() + 1, 1);
  }
  if (fault == Fault::kSize) shape.back() += 1;
  Generator layout(draft.layout.seed);
  const int64_t chosen = op_.layouts().empty() ? 0 : layout.Below(int64_t(op_.layouts().size()));
  if (op_.input(i).layout && chosen > 0 && shape.size() == op_.layouts()[size_t(chosen)].size()) {
    const std::vector<int64_t> logical = shape;
    for (size_t a = 0; a < shape.size(); ++a) shape[op_.layouts()[size_t(chosen)][a]] = logical[a];
  }
  return shape;
}

std::string RandomCalls::TensorText(const Draft& draft, size_t i, Fault fault) const {
  const Param& p = op_.input(i);
  Generator g(draft.tensors[i].values);
  DType type = DTypeOf(draft, i);
  if (fault == Fault::kDType) type = PickDType(g, ~p.dtypes & kAnyDType & ~Mask(DType::kF8E8M0, DType::kF4E2M1x2));
  const std::vector<int64_t> shape = StoredShape(draft, i, fault);
  std::string text = std::string(Info(type).short_name) + Join(shape, '[', ']');
  text += FillText(draft, p.name, g, type, Product(shape));
  for (const auto& [mark, chance] :
       {std::pair{"@pad", 0.1}, {"@transposed", 0.1}, {"@offset", 0.1}, {"@strided", 0.05}}) {
    if (g.Chance(chance)) text += mark;
  }
  return text;
}

std::string RandomCalls::ScalarText(size_t i, const Piece& piece) const {
  const Param& p = op_.scalar(i);
  Generator g(piece.seed);
  switch (p.kind) {
    case ParamKind::kBool: return g.Chance(0.5) ? "true" : "false";
    case ParamKind::kFloat:  // negative only where that is meaningful: not an epsilon, a temperature, a probability
      if (p.float_default <= 0 && g.Chance(0.1)) return "-1";
      return g.Pick<const char*>(
          {"1", "1", "0.5", "0.5", "0.9", "0.1", "2", "0.001", "1e-05", "1.5", "0", "inf", "nan"});
    case ParamKind::kInt:
      return g.Pick<const char*>({"0", "1", "1", "2", "2", "3", "4", "5", "8", "16", "17", "32", "64", "128", "-1",
                                  "-2", "100000", "4294967297", "-9223372036854775808"});
    default: break;
  }
  std::string_view rest = p.choices;
  for (int64_t skip = g.Below(1 + std::count(rest.begin(), rest.end(), '|')); skip > 0; --skip) {
    rest.remove_prefix(rest.find('|') + 1);
  }
  return std::string(rest.substr(0, rest.find('|')));
}

std::string RandomCalls::OptionsText(const Draft& draft) const {
  std::string text;
  for (size_t i = 0; i < op_.num_scalars(); ++i) {
    if (!draft.scalars[i].absent) text += " " + std::string(op_.scalar(i).name) + "=" + ScalarText(i, draft.scalars[i]);
  }
  Generator g(draft.layout.seed);
  if (!op_.layouts().empty()) text += " layout=" + op_.layout_names()[size_t(g.Below(int64_t(op_.layouts().size())))];
  return text;
}

std::string RandomCalls::Text(const Draft& draft, int broken, Fault fault) const {
  std::string text;
  for (size_t i = 0; i < op_.num_inputs(); ++i) {
    const bool here = int(i) == broken;
    if (draft.tensors[i].absent || (here && fault == Fault::kMissing)) continue;
    text += (text.empty() ? "" : " ") + std::string(op_.input(i).name) + "=" +
            TensorText(draft, i, here ? fault : Fault::kNone);
  }
  return text + OptionsText(draft);
}

Result<Case> RandomCalls::ToBind(const Draft& draft) const {
  auto c = ParseCase(op_, OptionsText(draft));
  if (!c.ok()) return c;
  for (size_t i = 0; i < op_.num_inputs(); ++i) {
    if (draft.tensors[i].absent) continue;
    c->tensors[i] = OwnedTensor::WithoutElements(DTypeOf(draft, i), StoredShape(draft, i, Fault::kNone));
  }
  return c;
}

void RandomCalls::Redraw(Draft& draft, std::string_view field) {
  const auto again = [&](Piece& p, bool may_be_absent) {
    p.seed = generator_.Next(), p.values = generator_.Next(), p.size = -1;
    if (may_be_absent) p.absent = generator_.Chance(0.5);
  };
  if (const auto i = op_.InputIndex(field); i && !generator_.Chance(0.4)) {
    return again(draft.tensors[*i], op_.input(*i).optional);
  }
  if (const auto i = op_.ScalarIndex(field); i && !generator_.Chance(0.3)) {
    return again(draft.scalars[*i], op_.scalar(*i).optional || op_.scalar(*i).has_default);
  }
  // The pieces that the field depends on are unknown: any one.
  const int64_t axes = int64_t(draft.axes.size()), tensors = int64_t(draft.tensors.size());
  const int64_t at = generator_.Below(axes + tensors + int64_t(draft.scalars.size()) + 1);
  if (at < axes) return again(draft.axes[size_t(at)], false);
  if (at < axes + tensors) return again(draft.tensors[size_t(at - axes)], op_.input(size_t(at - axes)).optional);
  const size_t s = size_t(at - axes - tensors);
  if (s == draft.scalars.size()) return again(draft.leading, false);
  again(draft.scalars[s], op_.scalar(s).optional || op_.scalar(s).has_default);
}

// Sets an axis that has the size that the error got to the size it wanted ("wanted 144 bytes a row, got 100").
bool RandomCalls::GiveWanted(Draft& draft, const ErrorParts& error) {
  const std::vector<int64_t> wanted = Numbers(error.wanted), got = Numbers(error.got);
  if (wanted.empty() || got.empty() || draft.axes.empty()) return false;
  const auto one_of = [&](const std::vector<int64_t>& values) {
    return values[size_t(generator_.Below(int64_t(values.size())))];
  };
  const int64_t from = one_of(got), to = one_of(wanted);
  const int64_t times = generator_.Pick<int64_t>({1, 1, 1, 2, 3});
  const size_t first = size_t(generator_.Below(int64_t(draft.axes.size())));
  for (size_t i = 0; i < draft.axes.size(); ++i) {
    const size_t a = (first + i) % draft.axes.size();
    if (draft.variables[a] != from || int(a) == op_.leading_axis()) continue;  // that one is a product of others
    draft.axes[a].size = to * times;
    return true;
  }
  return false;
}

// Draws one of the larger axes, or the leading ones, again.
void RandomCalls::Shrink(Draft& draft) {
  const int64_t axes = int64_t(draft.axes.size());
  int64_t at = generator_.Below(axes + 1);
  const int64_t other = generator_.Below(axes);
  if (at < axes && draft.variables[size_t(other)] > draft.variables[size_t(at)]) at = other;
  Piece& piece = at < axes ? draft.axes[size_t(at)] : draft.leading;
  piece.seed = generator_.Next(), piece.size = -1;
  if (op_.num_inputs() > 0 && generator_.Chance(0.2)) {  // sizes of its own
    draft.tensors[size_t(generator_.Below(int64_t(op_.num_inputs())))].seed = generator_.Next();
  }
}

// True if the reference accepts the values of a line's index tensors.
bool RandomCalls::AcceptsValues(const std::string& line) const {
  auto c = ParseCase(op_, line, Fills::kIntegers);
  if (!c.ok()) return false;
  Request r = c->MakeRequest();
  return Engine::Get().Bind(r).ok() && ReferenceAccepts(r).ok();
}

bool RandomCalls::Settle(Draft& draft) {
  int launches = 0;
  for (int round = 0; round < kRounds; ++round) {
    Resolve(draft);
    int64_t work = 1;
    for (size_t a = 0; a < draft.axes.size() && work <= kMaxWork; ++a) work *= std::max<int64_t>(1, draft.variables[a]);
    bool large = work > kMaxWork;
    for (size_t i = 0; i < op_.num_inputs(); ++i)
      large |= !draft.tensors[i].absent && Product(ShapeOf(draft, i)) > kMaxElements;
    if (large) {
      Shrink(draft);
      continue;
    }
    auto c = ToBind(draft);
    if (!c.ok()) return false;
    Request r = c->MakeRequest();
    for (lz_tensor& t : r.tensors) t.data = nullptr;  // there are no elements
    Status status = Engine::Get().Bind(r);
    if (!status.ok()) {
      std::string_view field = status.parts().field;
      if (const size_t colon = field.rfind(": "); colon != field.npos) field.remove_prefix(colon + 2);
      if (generator_.Chance(0.3) || !GiveWanted(draft, status.parts())) Redraw(draft, field);
      continue;
    }
    for (size_t o = 0; o < op_.num_outputs(); ++o) {  // even an empty one may have rows to iterate over
      std::vector<int64_t> sizes(r.outputs[o].shape, r.outputs[o].shape + std::max(0, r.outputs[o].ndim));
      for (int64_t& size : sizes) size = std::max<int64_t>(1, size);
      large |= Product(sizes) > kMaxElements;
    }
    if (large) {
      Redraw(draft, "");
      continue;
    }
    // Index values that every kernel refuses at launch: mostly drawn again.
    std::vector<size_t> indices;
    for (size_t i = 0; i < op_.num_inputs(); ++i) {
      if (!draft.tensors[i].absent && op_.input(i).dtypes & kIndices) indices.push_back(i);
    }
    if (indices.empty() || AcceptsValues(Text(draft))) return true;
    if (generator_.Chance(0.05) || ++launches == kLaunches) return true;
    const size_t i = indices[size_t(generator_.Below(int64_t(indices.size())))];
    generator_.Chance(0.7) ? void(draft.tensors[i].values = generator_.Next()) : Redraw(draft, op_.input(i).name);
  }
  return false;
}

bool RandomCalls::Find(Draft& draft) {
  for (int tries = 0; tries < 4; ++tries) {
    draft = found_ && !generator_.Chance(kFresh) ? Varied(*found_) : NewDraft();
    if (Settle(draft)) {
      found_ = draft;
      return true;
    }
    found_.reset();
  }
  return false;
}

std::string RandomCalls::Valid() {
  Draft draft;
  return Find(draft) ? Text(draft) : std::string();
}

bool RandomCalls::Shares(const Draft& draft, size_t i) const {
  const ShapeProgram& program = op_.input_shapes()[i];
  if (program.any_rank || program.dims.empty() || op_.input(i).broadcast || op_.input(i).layout) return false;
  const Dim& last = program.dims.back();
  for (size_t other = 0; other < op_.num_inputs(); ++other) {
    const ShapeProgram& theirs = op_.input_shapes()[other];
    if (other == i || draft.tensors[other].absent || theirs.any_rank || op_.input(other).broadcast) continue;
    for (const Dim& dim : theirs.dims) {
      if (last.kind == Dim::Kind::kAxis && dim.kind == Dim::Kind::kAxis && dim.axis == last.axis) return true;
    }
  }
  return false;
}

std::string RandomCalls::Broken() {
  Draft draft;
  if (op_.num_inputs() == 0 || !Find(draft)) return {};
  for (int tries = 0; tries < 8; ++tries) {
    const size_t i = size_t(generator_.Below(int64_t(op_.num_inputs())));
    const ShapeProgram& program = op_.input_shapes()[i];
    if (draft.tensors[i].absent) continue;
    switch (Fault(1 + generator_.Below(4))) {
      case Fault::kMissing:
        if (!op_.input(i).optional) return Text(draft, int(i), Fault::kMissing);
        break;
      case Fault::kDType:
        if (~op_.input(i).dtypes & kFloats) return Text(draft, int(i), Fault::kDType);
        break;
      case Fault::kRank:
        if (program.any_rank || (program.leading && program.dims.empty())) break;
        return Text(draft, int(i), Fault::kRank);
      case Fault::kSize:
        if (Shares(draft, i)) return Text(draft, int(i), Fault::kSize);
        break;
      case Fault::kNone: break;
    }
  }
  return {};
}

}  // namespace lz::verify
