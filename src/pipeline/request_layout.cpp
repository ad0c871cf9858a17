// The layout of a call that does not give one: what strides, the contract's shapes and usual head counts say.
#include <algorithm>
#include <optional>

#include "pipeline/request.h"

namespace lz {
namespace {

// One reading of a request: its tensors in the contract's order of axes, and the sizes that they bind.
class Reading {
 public:
  Reading(const Request& r, size_t layout) : r_(r), op_(*r.op), physical_of_(op_.layouts()[layout]) {}

  // Whether the contract allows it. `broadcast`: masks are asked too.
  bool Fits(bool broadcast) {
    bound_ = 0;
    for (size_t i = 0; i < op_.num_inputs(); ++i) {
      tensors_[i] = r_.tensors[i];
      const Param& p = op_.input(i);
      if (tensors_[i].ndim < 0 || (p.broadcast && !broadcast)) continue;
      if (p.layout && !Turn(i)) return false;
      if (!Binds(op_.input_shapes()[i], p, tensors_[i])) return false;
    }
    return Means();
  }
  // Of the first tensor that is laid out; -1: the axis has no letter.
  int64_t NumHeads() const {
    for (size_t i = 0; i < op_.num_inputs(); ++i) {
      if (op_.input(i).layout && r_.tensors[i].ndim >= 0 && op_.head_axis() >= 0) {
        return r_.tensors[i].shape[physical_of_[size_t(op_.head_axis())]];
      }
    }
    return -1;
  }

 private:
  bool Turn(size_t i) {
    lz_tensor& t = tensors_[i];
    if (t.ndim != int32_t(physical_of_.size())) return false;
    int64_t* shape = views_[i].data();
    for (size_t a = 0; a < physical_of_.size(); ++a) {
      shape[a] = t.shape[physical_of_[a]];
      shape[kMaxRank + a] = t.strides[physical_of_[a]];
    }
    t.shape = shape;
    t.strides = shape + kMaxRank;
    return true;
  }

  bool Binds(const ShapeProgram& program, const Param& p, const lz_tensor& t) {
    if (program.any_rank || program.leading) return true;
    const int32_t lead = t.ndim - int32_t(program.dims.size());
    if (p.broadcast ? lead > 0 : lead != 0) return false;
    for (size_t d = size_t(-lead); d < program.dims.size(); ++d) {
      const Dim& dim = program.dims[d];
      const int64_t size = t.shape[int32_t(d) + lead];
      if (dim.kind != Dim::Kind::kAxis || (p.broadcast && size == 1)) continue;
      int64_t& axis = axes_[size_t(dim.axis)];
      if (bound_ >> dim.axis & 1 && axis != size) return false;
      bound_ |= 1u << dim.axis;
      axis = size;
    }
    return true;
  }

  bool Means() {
    if (!op_.contract().canonicalize) return true;
    std::array<lz_scalar, kMaxScalars> scalars = r_.scalars;
    for (size_t i = 0; i < op_.num_scalars(); ++i) {
      const Param& p = op_.scalar(i);
      if (scalars[i].given || !p.has_default) continue;
      scalars[i].given = 1;
      if (p.kind == ParamKind::kFloat) {
        scalars[i].value.f = p.float_default;
      } else {
        scalars[i].value.i = p.int_default;
      }
    }
    BoundArgs args{tensors_.data(), scalars.data(), axes_.data()};
    return op_.contract().canonicalize(args).ok();
  }

  const Request& r_;
  const Operation& op_;
  const std::vector<uint8_t>& physical_of_;
  std::array<lz_tensor, kMaxTensors> tensors_;
  std::array<std::array<int64_t, 2 * kMaxRank>, kMaxTensors> views_;
  std::array<int64_t, kMaxAxes + kMaxScalars + kMaxAxes> axes_{};
  uint32_t bound_ = 0;
};

// Whether two axes of a tensor lie in memory the other way round than they are written.
bool Swapped(const lz_tensor& t, int a, int b) {
  return t.shape[a] > 1 && t.shape[b] > 1 && t.strides[a] < t.strides[b];
}

enum class Order : uint8_t { kAny, kWritten, kSwapped, kMixed };

// How every laid out tensor's second and third axis lie in memory: a transposed view was made from the other layout.
Order MemoryOrder(const Request& r) {
  Order order = Order::kAny;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (!r.op->input(i).layout || t.ndim < 3 || t.shape[1] <= 1 || t.shape[2] <= 1) continue;
    const Order one = Swapped(t, 1, 2) ? Order::kSwapped : Order::kWritten;
    order = order == Order::kAny || order == one ? one : Order::kMixed;
  }
  return order;
}

bool OneReadingAlone(const Request& r) {  // axes of size 1 may be read either way
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (r.op->input(i).layout && t.ndim >= 3 && (t.shape[1] != 1 || t.shape[2] != 1)) return false;
  }
  return true;
}

}  // namespace

Status DetectLayout(Request& r) {
  const Operation& op = *r.op;
  static const LayoutRules kDefaults;
  const LayoutRules& rules = r.layout_rules ? *r.layout_rules : kDefaults;
  const auto decide = [&](size_t layout, LayoutSource source) {
    r.layout = int32_t(layout);
    r.layout_source = source;
    return Status();
  };
  if (op.layouts().size() != 2 || OneReadingAlone(r)) return decide(0, LayoutSource::kSchema);
  Reading readings[] = {{r, 0}, {r, 1}};
  const bool usual[] = {std::ranges::count(rules.head_counts, readings[0].NumHeads()) > 0,
                        std::ranges::count(rules.head_counts, readings[1].NumHeads()) > 0};
  const bool fit[] = {readings[0].Fits(false), readings[1].Fits(false)};
  if (fit[0] != fit[1] || !fit[0]) return decide(fit[1], LayoutSource::kSchema);
  // Activations lie in memory as projections make them, heads innermost: a transposed view puts the heads first.
  if (MemoryOrder(r) == Order::kSwapped && !(usual[0] && !usual[1])) return decide(1, LayoutSource::kStrides);
  const bool with_mask[] = {readings[0].Fits(true), readings[1].Fits(true)};
  if (with_mask[0] != with_mask[1]) return decide(with_mask[1], LayoutSource::kMask);
  if (usual[0] != usual[1]) return decide(usual[1], LayoutSource::kHeadCounts);
  if (rules.strict) {
    return Status(StatusCode::kInvalidRequest,
                  {.field = std::string(op.name()) + ": layout",
                   .wanted = op.layout_names()[0] + " or " + op.layout_names()[1] + ", in strict mode",
                   .got = "none, and shapes and strides allow both",
                   .fix = "pass layout="});
  }
  return decide(0, LayoutSource::kAssumed);
}

}  // namespace lz
