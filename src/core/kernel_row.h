// A KernelSpec in plain C types, for rows of a library that another compiler built. Standard libraries do not agree on
// the order of std::string_view's members, so none may cross the boundary.
#pragma once

#include <cstdint>

#include "core/kernel.h"

namespace lz {

struct RowText {
  const char* data;
  uint64_t size;
};

struct KernelRow {
  RowText id, operation, source, numerics;
  uint32_t version;
  Platform platform;
  DTypeMask dtypes;
  Strides strides;
  int32_t priority;
  bool deterministic, cuda_graph_safe, requires_grad, reference;
  TpInvariance tp;
  CallKind call;
  lz_launch_fn launch;
  lz_workspace_fn workspace;
  const char* (*open)(const char* path);
};

struct ConstraintRow {
  RowText field;
  Rel rel;
  int64_t operand;
  const int64_t* set;
  uint64_t set_size;
  ReasonCode code;
  RowText fact;
};

// Receives rows: a kernel, then its constraints, its preferences, each followed by its conditions, and the optional
// parameters that it accepts. The data that they point to stays valid.
struct RowReceiver {
  void* self;
  void (*kernel)(void* self, const KernelRow* row);
  void (*constraint)(void* self, const ConstraintRow* row);
  void (*preference)(void* self, int32_t priority);
  void (*condition)(void* self, const ConstraintRow* row);
  void (*accepts)(void* self, RowText parameter);
};

inline RowText ToRow(std::string_view text) { return {text.data(), text.size()}; }

// Structured bindings name every member, so that adding one is a compile error here.
inline ConstraintRow ToRow(const Constraint& constraint) {
  const auto& [field, rel, operand, set, code, fact] = constraint;
  return {ToRow(field), rel, operand, set.data(), set.size(), code, ToRow(fact)};
}

inline void Send(const KernelSpec& spec, const RowReceiver& to) {
  const auto& [id, operation, source, version, platform, dtypes, constraints, accepts, strides, priority, preferences,
               deterministic, cuda_graph_safe, requires_grad, reference, numerics, tp, call, launch, workspace, open] =
      spec;
  const KernelRow row = {
      ToRow(id),     ToRow(operation), ToRow(source), ToRow(numerics), version, platform, dtypes, strides,   priority,
      deterministic, cuda_graph_safe,  requires_grad, reference,       tp,      call,     launch, workspace, open};
  to.kernel(to.self, &row);
  for (const Constraint& constraint : constraints) {
    const ConstraintRow one = ToRow(constraint);
    to.constraint(to.self, &one);
  }
  for (const auto& [when, its_priority] : preferences) {
    to.preference(to.self, its_priority);
    for (const Constraint& condition : when) {
      const ConstraintRow one = ToRow(condition);
      to.condition(to.self, &one);
    }
  }
  for (const std::string_view parameter : accepts) to.accepts(to.self, ToRow(parameter));
}

}  // namespace lz
