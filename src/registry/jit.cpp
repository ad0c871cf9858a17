// Kernels that are compiled at their first call of a kind: which kinds there are, and which are ready.
#include <algorithm>

#include "registry/registry.h"

namespace lz {

Status Registry::ResolveJit(const JitKey& key, KernelEntry* entry, std::vector<Predicate>* predicates) {
  entry->jit.when = key.when;
  if (key.when != Jit::kFirstCall) return {};
  const Operation& op = *entry->op;
  std::vector<std::string> fields = key.fields;
  if (!op.layout_names().empty()) fields.push_back("layout");
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const std::string name(op.input(i).name);
    if (op.input(i).optional) fields.push_back(name + ".given");
    fields.push_back(name + ".dtype");
  }
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    const Param& p = op.scalar(i);
    if (p.kind == ParamKind::kBool || p.kind == ParamKind::kChoice) fields.emplace_back(p.name);
  }
  for (const std::string& field : fields) {
    const bool named = std::ranges::find(key.fields, field) != key.fields.end();
    if (!op.FindField(field)) {
      if (!named) continue;  // an option that is folded into another field
      return Status(StatusCode::kConfig, {.field = "kernel " + entry->id + ": jit.key",
                                          .wanted = "fields of " + entry->operation,
                                          .got = "'" + field + "'"});
    }
    auto row = Resolve(op, {field, Rel::kEq, 0}, predicates);
    if (!row.ok()) return row.TakeStatus();
    entry->jit.fields.push_back(std::move(*row));
  }
  auto conditions = ResolveAll(op, key.conditions, predicates);
  if (!conditions.ok()) return conditions.TakeStatus();
  entry->jit.conditions = std::move(*conditions);
  auto capturing = Resolve(op, {"capturing", Rel::kEq, 0}, predicates);
  if (!capturing.ok()) return capturing.TakeStatus();
  entry->jit.never.push_back(std::move(*capturing));
  return {};
}

void Registry::SetJit(const KernelEntry& kernel, const JitKind& kind, bool ready) {
  std::lock_guard lock(mutex_);
  Building& b = building_[kernel.op->index()];
  const auto& fields = kernel.jit.fields;
  if (kernel.removed || kernel.jit.when != Jit::kFirstCall ||
      kind.size() != fields.size() + kernel.jit.conditions.size())
    return;
  for (size_t i = 0; i < fields.size(); ++i) {
    Row row = fields[i];
    row.operand = kind[i];
    const auto same = [&](const Row& r) { return r.field == row.field && r.operand == row.operand; };
    if (std::ranges::none_of(b.jit, same)) b.jit.push_back(std::move(row));
  }
  if (ready) {
    b.jit_ready[&kernel].insert(kind);
  } else if (const auto at = b.jit_ready.find(&kernel); at != b.jit_ready.end()) {
    at->second.erase(kind);
  }
  PublishState(*kernel.op);
}

}  // namespace lz
