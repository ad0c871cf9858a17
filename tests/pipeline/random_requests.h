// Random valid requests of any operation, from its contract: sizes up to beyond int32, every stride pattern, optional
// arguments, layouts, flags. Nothing is ever run: the data pointers are addresses only.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "pipeline/request.h"

namespace lz::testing_requests {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Below(int64_t n) { return int64_t(engine_() % uint64_t(n)); }
  bool Chance(int percent) { return Below(100) < percent; }
  template <class Container>
  const auto& Of(const Container& c) {
    return c[size_t(Below(int64_t(std::size(c))))];
  }

 private:
  std::mt19937_64 engine_;
};

inline constexpr int64_t kInt32Max = 2147483647;
inline constexpr int64_t kSmallSizes[] = {0, 1, 1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 100, 128, 256};
inline constexpr int64_t kLargeSizes[] = {4096,          65535,         kInt32Max - 1,   kInt32Max,
                                          kInt32Max + 1, kInt32Max + 7, int64_t{1} << 33};

// What is drawn for one request: axes and choices; building it again gives the same request.
struct Draft {
  std::vector<int64_t> axes;              // the contract's, "..." not used
  std::vector<int64_t> leading;           // of "..."
  std::vector<std::vector<int64_t>> own;  // by input: sizes without an axis, all of "*" or those of "_"
  std::vector<DType> dtypes;              // by input
  std::vector<bool> given;
  std::vector<int> strides;  // by input: 0 dense, 1 padded, 2 last two axes swapped, 3 last stride 2, 4 first stride 0
  std::vector<int> offsets;  // bytes / 2
  std::vector<lz_scalar> scalars;
  uint32_t flags = 0;
  int32_t layout = 0, device = 0;
  int64_t policy = 0;
};

struct BuiltRequest {
  explicit BuiltRequest(const Operation& op) : r(op) {}
  BuiltRequest(const BuiltRequest&) = delete;
  Request r;
  std::array<std::vector<int64_t>, kMaxTensors> shapes, strides;
};

inline std::vector<DType> DTypesOf(DTypeMask mask) {
  std::vector<DType> all;
  for (int i = 1; i < int(DType::kCount); ++i) {
    if (mask >> i & 1) all.push_back(DType(i));
  }
  return all;
}

inline lz_scalar RandomScalar(Random& random, const Param& p) {
  lz_scalar s{};
  s.given = !p.optional && !p.has_default ? 1 : uint64_t(random.Chance(50));
  if (!s.given) return s;
  if (p.kind == ParamKind::kFloat) {
    static constexpr double kValues[] = {0, 0.5, 1, 1e-6, 2};
    s.value.f = random.Chance(30) ? p.float_default : random.Of(kValues);
  } else if (p.kind == ParamKind::kInt) {
    static constexpr int64_t kValues[] = {-1, 0, 1, 2, 16, 32, 64, 128, kInt32Max, kInt32Max + 3, -kInt32Max - 9};
    s.value.i = random.Chance(30) ? p.int_default : random.Of(kValues);
  } else {
    const int64_t values = p.kind == ParamKind::kBool ? 2 : 1 + std::count(p.choices.begin(), p.choices.end(), '|');
    s.value.i = random.Below(values);
  }
  return s;
}

inline Draft RandomDraft(Random& random, const Operation& op) {
  Draft d;
  for (size_t a = 0; a < op.axes().size(); ++a) d.axes.push_back(random.Of(kSmallSizes));
  if (random.Chance(25)) d.axes[size_t(random.Below(int64_t(d.axes.size())))] = random.Of(kLargeSizes);
  for (int64_t i = random.Below(3); i > 0; --i) d.leading.push_back(1 + random.Below(5));
  const bool all = random.Chance(10);
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const Param& p = op.input(i);
    d.dtypes.push_back(random.Of(DTypesOf(p.dtypes)));
    if (op.same_dtype(i) >= 0) d.dtypes[i] = d.dtypes[size_t(op.same_dtype(i))];
    d.own.push_back(op.input_shapes()[i].any_rank ? d.leading : std::vector<int64_t>(kMaxRank, 3));
    d.given.push_back(!p.optional || all || random.Chance(25));
    d.strides.push_back(random.Chance(60) ? 0 : int(random.Below(5)));
    d.offsets.push_back(random.Chance(70) ? 0 : int(random.Below(16)));
  }
  for (size_t i = 0; i < op.num_scalars(); ++i) d.scalars.push_back(RandomScalar(random, op.scalar(i)));
  d.flags = uint32_t(random.Below(4));
  if (random.Chance(50)) d.flags = 0;
  d.layout = op.layout_names().size() > 1 && random.Chance(30) ? 1 : 0;
  d.device = int32_t(random.Below(2));
  d.policy = random.Below(2);
  return d;
}

// Changes one thing.
inline Draft Mutated(Random& random, const Operation& op, Draft d) {
  const Draft other = RandomDraft(random, op);
  const size_t axis = size_t(random.Below(int64_t(d.axes.size())));
  const size_t input = size_t(random.Below(int64_t(op.num_inputs())));
  switch (random.Below(11)) {
    case 0:
    case 1:
    case 2: d.axes[axis] = std::max<int64_t>(0, d.axes[axis] + random.Below(9) - 4); break;
    case 3: d.axes[axis] = other.axes[axis]; break;
    case 4: d.strides[input] = other.strides[input]; break;
    case 5: d.offsets[input] = other.offsets[input]; break;
    case 6: d.given[input] = other.given[input]; break;
    case 7:
      if (op.num_scalars() > 0) {
        const size_t s = size_t(random.Below(int64_t(op.num_scalars())));
        d.scalars[s] = other.scalars[s];
      }
      break;
    case 8: d.leading = other.leading; break;
    case 9: d.own[input] = other.own[input]; break;
    default: d.dtypes = other.dtypes; break;
  }
  return d;
}

inline std::vector<int64_t> ShapeOf(const Operation& op, size_t input, const Draft& d) {
  const ShapeProgram& program = op.input_shapes()[input];
  std::vector<int64_t> shape;
  if (program.any_rank) return d.own[input];
  if (program.leading) shape = d.leading;
  size_t own = 0;
  std::array<int64_t, kMaxAxes + kMaxScalars + kMaxAxes> variables{};
  for (size_t a = 0; a < d.axes.size(); ++a) variables[a] = d.axes[a];
  for (size_t s = 0; s < d.scalars.size(); ++s) {
    const Param& p = op.scalar(s);
    if (p.kind == ParamKind::kFloat) continue;
    variables[kMaxAxes + s] = d.scalars[s].given ? d.scalars[s].value.i : p.int_default;
  }
  for (const Dim& dim : program.dims) {
    int64_t size = 0;
    if (dim.kind == Dim::Kind::kAny) size = d.own[input][own++];
    if (dim.kind == Dim::Kind::kAxis) size = variables[size_t(dim.axis)];
    if (dim.kind == Dim::Kind::kExpression) size = op.expressions()[size_t(dim.expression)].Evaluate(variables.data());
    shape.push_back(std::max<int64_t>(0, size));
  }
  return shape;
}

// nullptr when the contract refuses it.
inline std::unique_ptr<BuiltRequest> Build(const Operation& op, const Draft& d) {
  auto built = std::make_unique<BuiltRequest>(op);
  // Addresses far apart: what is written in place has memory of its own.
  const auto memory = [](size_t i) { return (i + 1) << 57; };
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    if (!d.given[i]) continue;
    std::vector<int64_t> shape = ShapeOf(op, i, d);
    double elements = 1;
    for (int64_t size : shape) elements *= double(std::max<int64_t>(1, size + 3));
    if (elements > 1e18) return nullptr;  // no address space holds it
    if (d.layout > 0 && op.input(i).layout) {
      const std::vector<int64_t> logical = shape;
      const auto& physical_of = op.layouts()[size_t(d.layout)];
      for (size_t a = 0; a < logical.size() && a < physical_of.size(); ++a) shape[physical_of[a]] = logical[a];
    }
    std::vector<int64_t> strides(shape.size());
    std::vector<size_t> order(shape.size());
    for (size_t a = 0; a < order.size(); ++a) order[a] = a;
    if (d.strides[i] == 2 && order.size() >= 2) std::swap(order.back(), order[order.size() - 2]);
    int64_t stride = d.strides[i] == 3 ? 2 : 1;
    for (size_t a = order.size(); a-- > 0;) {
      strides[order[a]] = d.strides[i] == 4 && order[a] == 0 ? 0 : stride;
      stride *= std::max<int64_t>(1, shape[order[a]]);
      if (d.strides[i] == 1 && a + 1 == order.size()) stride += 3;
    }
    built->shapes[i] = std::move(shape);
    built->strides[i] = std::move(strides);
    const DTypeInfo& type = Info(d.dtypes[i]);
    built->r.tensors[i] = {reinterpret_cast<void*>(memory(i) + size_t(2 * d.offsets[i])),
                           {1, 0},
                           int32_t(built->shapes[i].size()),
                           {type.dlpack_code, type.bits, type.lanes},
                           built->shapes[i].data(),
                           built->strides[i].data(),
                           0};
  }
  std::copy(d.scalars.begin(), d.scalars.end(), built->r.scalars.begin());
  built->r.flags = d.flags;
  built->r.layout = d.layout;
  built->r.device = d.device;
  built->r.policy = d.policy;
  if (!Bind(built->r, kDefaultLayoutRules).ok()) return nullptr;
  RefreshFacts(built->r);
  return built;
}

}  // namespace lz::testing_requests
