// Decides the layout of a call that does not name one. Layouts that the contract's shapes refuse are excluded, then
// implausible ones; if several remain, strides and usual numbers of heads decide, and the call is marked as guessed.
// Strict mode refuses such a call.
#include <algorithm>
#include <optional>

#include "pipeline/request.h"

namespace lz {
namespace {

// One interpretation of a request: its tensors in the contract's order of axes, and the sizes that they bind.
class Reading {
 public:
  Reading(const BoundCall& r, size_t layout) : r_(r), op_(*r.op), physical_of_(op_.layouts()[layout]) {}

  // True if the contract allows it. `broadcast`: checks masks too.
  bool Fits(bool broadcast) {
    bound_ = 0;
    for (size_t i = 0; i < op_.num_inputs(); ++i) {
      tensors_[i] = r_.tensors[i];
      const Param& p = op_.input(i);
      if (tensors_[i].ndim < 0 || (p.broadcast && !broadcast)) continue;
      if (p.layout && !Transpose(i)) return false;
      if (!TryBind(op_.input_shapes()[i], p, tensors_[i])) return false;
    }
    return IsValid();
  }
  // Call after Fits. True if it is a likely call: causal with more queries than keys would mask every key for the
  // first ones.
  bool IsPlausible(int64_t most_heads) const {
    if (NumHeads() > most_heads) return false;
    const auto& causal = op_.causal();
    if (!causal || !scalars_[size_t(causal->scalar)].value.i) return true;
    return axes_[size_t(causal->s_q)] <= axes_[size_t(causal->s_kv)];
  }
  // The number of heads of the first tensor with a layout; -1: the axis has no letter.
  int64_t NumHeads() const {
    for (size_t i = 0; i < op_.num_inputs(); ++i) {
      if (op_.input(i).layout && r_.tensors[i].ndim >= 0 && op_.head_axis() >= 0) {
        return r_.tensors[i].shape[physical_of_[size_t(op_.head_axis())]];
      }
    }
    return -1;
  }

 private:
  bool Transpose(size_t i) {
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

  bool TryBind(const ShapeProgram& program, const Param& p, const lz_tensor& t) {
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

  bool IsValid() {
    scalars_ = r_.scalars;
    for (size_t i = 0; i < op_.num_scalars(); ++i) {
      const Param& p = op_.scalar(i);
      if (scalars_[i].given || !p.has_default) continue;
      scalars_[i].given = 1;
      if (p.kind == ParamKind::kFloat) {
        scalars_[i].value.f = p.float_default;
      } else {
        scalars_[i].value.i = p.int_default;
      }
    }
    if (!op_.contract().canonicalize) return true;
    BoundArgs args{tensors_.data(), scalars_.data(), axes_.data()};
    return op_.contract().canonicalize(args).ok();
  }

  const BoundCall& r_;
  const Operation& op_;
  const std::vector<uint8_t>& physical_of_;
  std::array<lz_tensor, kMaxTensors> tensors_;
  std::array<std::array<int64_t, 2 * kMaxRank>, kMaxTensors> views_;
  std::array<lz_scalar, kMaxScalars> scalars_;
  std::array<int64_t, kMaxAxes + kMaxScalars + kMaxAxes> axes_{};
  uint32_t bound_ = 0;
};

// True if two axes of a tensor are stored in the opposite order.
bool Swapped(const lz_tensor& t, int a, int b) {
  return t.shape[a] > 1 && t.shape[b] > 1 && t.strides[a] < t.strides[b];
}

enum class Order : uint8_t { kAny, kWritten, kSwapped, kMixed };

// The order in memory of the second and third axis of all tensors with a layout: a transposed view was made from the
// other layout.
Order MemoryOrder(const BoundCall& r) {
  Order order = Order::kAny;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (!r.op->input(i).layout || t.ndim < 3 || t.shape[1] <= 1 || t.shape[2] <= 1) continue;
    const Order one = Swapped(t, 1, 2) ? Order::kSwapped : Order::kWritten;
    order = order == Order::kAny || order == one ? one : Order::kMixed;
  }
  return order;
}

bool OneReadingAlone(const BoundCall& r) {  // axes of size 1 fit both interpretations
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (r.op->input(i).layout && t.ndim >= 3 && (t.shape[1] != 1 || t.shape[2] != 1)) return false;
  }
  return true;
}

Status Undecided(const Operation& op) {
  return Status(StatusCode::kInvalidRequest,
                {.field = std::string(op.name()) + ": layout",
                 .wanted = op.layout_names()[0] + " or " + op.layout_names()[1] + ", in strict mode",
                 .got = "none, and shapes and strides allow both",
                 .fix = "pass layout="});
}

}  // namespace

const LayoutRules kDefaultLayoutRules;

Status DetectLayout(BoundCall& r, const LayoutRules& rules) {
  const Operation& op = *r.op;
  const auto decide = [&](bool layout, LayoutSource source) {
    r.layout = int32_t(layout);
    r.layout_source = source;
    r.layout_guessed = false;
    return Status();
  };
  if (op.layouts().size() != 2 || OneReadingAlone(r)) return decide(0, LayoutSource::kSchema);
  Reading readings[] = {{r, 0}, {r, 1}};
  const bool fit[] = {readings[0].Fits(false), readings[1].Fits(false)};
  if (fit[0] != fit[1] || !fit[0]) return decide(fit[1], LayoutSource::kSchema);
  const bool with_mask[] = {readings[0].Fits(true), readings[1].Fits(true)};
  if (with_mask[0] != with_mask[1]) return decide(with_mask[1], LayoutSource::kMask);
  const int64_t most = rules.head_counts.empty() ? INT64_MAX : *std::ranges::max_element(rules.head_counts);
  const bool plausible[] = {readings[0].IsPlausible(most), readings[1].IsPlausible(most)};
  if (plausible[0] != plausible[1]) return decide(plausible[1], LayoutSource::kPlausibility);

  const int64_t heads[] = {readings[0].NumHeads(), readings[1].NumHeads()};  // heads of one interpretation are
                                                                             // positions of the other
  const bool usual[] = {std::ranges::count(rules.head_counts, heads[0]) > 0,
                        std::ranges::count(rules.head_counts, heads[1]) > 0};
  const auto guess = [&](bool layout, LayoutSource source) {
    if (rules.strict) return Undecided(op);
    (void)decide(layout, source);
    r.layout_guessed = true;
    return Status();
  };
  // Projections store activations with heads innermost; a transposed view puts the heads first. It may also be a
  // transposed cache, so strides need a second indication: usual heads, or fewer heads than positions.
  if (MemoryOrder(r) == Order::kSwapped && !(usual[0] && !usual[1])) {
    const bool agree = usual[0] != usual[1] || heads[1] < heads[0];
    return agree ? decide(1, LayoutSource::kStrides) : guess(1, LayoutSource::kStrides);
  }
  if (usual[0] != usual[1]) return guess(usual[1], LayoutSource::kHeadCounts);
  return guess(0, LayoutSource::kAssumed);
}

}  // namespace lz
