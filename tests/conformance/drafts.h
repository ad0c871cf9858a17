// Requests near an operation's cases, and facts of made-up devices and policies that satisfy a kernel's rows.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "policy/store.h"
#include "tests/conformance/case_files.h"
#include "tests/pipeline/random_requests.h"

namespace lz::verify {
using namespace testing_requests;

using DeviceFacts = std::array<int64_t, size_t(DeviceField::kCount)>;

inline bool IsHome(const KernelEntry& k, const Row& row, FieldHome home) {
  return row.predicate < 0 && k.op->fields()[row.field].home == home;
}

// Values near a row's boundary.
inline std::vector<int64_t> Near(const Row& row) {
  std::vector<int64_t> values = {row.operand, row.operand + 1, row.operand - 1, 0, 1, -1};
  values.insert(values.end(), row.set.begin(), row.set.end());
  for (int bit = 0; bit < 16; ++bit) values.push_back(row.rel == Rel::kInMask ? bit : int64_t{1} << bit);
  return values;
}

// Facts of a device or a policy that restrict nothing by themselves.
template <class FactsArray>
FactsArray Unrestricted(const Operation& op) {
  if constexpr (std::is_same_v<FactsArray, PolicyFacts>) return PolicyFactsOf(Policy{}, op);
  return FactsArray{};
}

// Facts that satisfy every row of `home`, except `except`, which they break; nullopt when none were found.
template <class FactsArray>
std::optional<FactsArray> Satisfy(const KernelEntry& k, FieldHome home, const Row* except) {
  FactsArray facts = Unrestricted<FactsArray>(*k.op);
  std::map<uint8_t, std::vector<const Row*>> by_field;
  for (const Row& row : k.rows) {
    if (IsHome(k, row, home)) by_field[k.op->fields()[row.field].slot].push_back(&row);
  }
  for (const auto& [slot, rows] : by_field) {
    std::vector<int64_t> values;
    int64_t bits = 0;
    for (const Row* row : rows) {
      const std::vector<int64_t> near = Near(*row);
      values.insert(values.end(), near.begin(), near.end());
      if (row->rel == Rel::kHasBits && row != except) bits |= row->operand;
    }
    values.push_back(bits);
    const auto fits = [&](int64_t value) {
      return std::all_of(rows.begin(), rows.end(), [&](const Row* row) {
        return Holds(row->rel, value, row->operand, row->set) == (row != except);
      });
    };
    const auto at = std::find_if(values.begin(), values.end(), fits);
    if (at == values.end()) return std::nullopt;
    facts[slot] = *at;
  }
  return facts;
}

// Its last two axes are swapped in memory.
inline bool IsByColumns(const lz_tensor& t) {
  return t.ndim > 1 && t.shape[t.ndim - 1] > 1 && t.strides[t.ndim - 2] == 1;
}

// A case's request as a draft that can be changed.
inline std::optional<Draft> DraftOf(Case& c) {
  Request r = c.MakeRequest();
  r.device = 0;
  Draft d;
  for (size_t s = 0; s < c.scalars.size(); ++s) d.scalars.push_back(c.scalars[s]);
  if (!Bind(r, kDefaultLayoutRules).ok()) return std::nullopt;
  d.axes.assign(r.axes(), r.axes() + c.op->axes().size());
  for (size_t i = 0; i < c.tensors.size(); ++i) {
    d.given.push_back(c.tensors[i].given());
    d.dtypes.push_back(c.tensors[i].given() ? c.tensors[i].dtype() : DTypesOf(c.op->input(i).dtypes)[0]);
    d.strides.push_back(c.tensors[i].given() && IsByColumns(c.tensors[i].tensor()) ? 2 : 0);
    d.offsets.push_back(0);
    const ShapeProgram& program = c.op->input_shapes()[i];
    const auto& shape = c.tensors[i].shape();
    const size_t lead = c.tensors[i].given() && program.leading ? shape.size() - program.dims.size() : 0;
    if (lead > 0) d.leading.assign(shape.begin(), shape.begin() + int64_t(lead));
    auto& own = d.own.emplace_back();
    if (program.any_rank) own = shape;
    for (size_t n = 0; n < program.dims.size(); ++n) {
      if (program.dims[n].kind == Dim::Kind::kAny) own.push_back(c.tensors[i].given() ? shape[lead + n] : 1);
    }
  }
  d.layout = c.layout;
  return d;
}

}  // namespace lz::verify
