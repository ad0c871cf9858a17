#include "policy/names.h"

#include <algorithm>
#include <functional>

#include "policy/keys.h"
#include "policy/values.h"

namespace lz {
namespace {

constexpr std::string_view kListFix = "`layerzero list` shows them";

std::string NearestFix(std::string_view text, std::span<const std::string_view> names, std::string_view otherwise) {
  const std::string_view near = NearestName(text, names);
  return near.empty() ? std::string(otherwise) : "did you mean " + std::string(near) + "?";
}

// By edit distance "hwy.rms" is close to no id; a kernel of that library whose id ends alike is meant.
std::string NearestKernel(std::string_view id, std::span<const std::string_view> ids, std::string_view otherwise) {
  const size_t first = id.find('.'), last = id.rfind('.');
  if (NearestName(id, ids).empty() && first != id.npos) {
    for (std::string_view known : ids) {
      if (known.starts_with(id.substr(0, first + 1)) && known.ends_with(id.substr(last))) {
        return "did you mean " + std::string(known) + "?";
      }
    }
  }
  return NearestFix(id, ids, otherwise);
}

// The library of a kernel id: "hwy" for "hwy.norm.rms".
std::string_view LibraryOf(std::string_view id) { return id.substr(0, id.find('.')); }
bool HasGlob(std::string_view text) { return text.find_first_of("*?") != text.npos; }

using Test = std::function<bool(const Operation&, std::string_view id)>;
bool AnyVariant(const Operation& op, const Test& test) {
  return std::ranges::any_of(op.contract().variants, [&](const Variant& v) { return test(op, v.id); });
}

struct Names {
  const Registry& registry;
  const LibraryNames& later;
  std::vector<const KernelEntry*> kernels;
  LibraryNames libraries;

  Names(const Registry& of, const LibraryNames& not_yet) : registry(of), later(not_yet), kernels(of.Kernels(nullptr)) {
    libraries = later;
    for (const KernelEntry* k : kernels) {
      libraries.insert(k->source);
      libraries.emplace(LibraryOf(k->id));
    }
  }

  Status Library(const std::string& where, std::string_view name) const {
    if (HasGlob(name) || libraries.contains(name)) return {};
    const std::vector<std::string_view> known(libraries.begin(), libraries.end());
    return {StatusCode::kConfig,
            {.field = where,
             .wanted = "a library that LayerZero has kernels of",
             .got = "'" + std::string(name) + "'",
             .fix = NearestFix(name, known, "`layerzero backends` shows them")}};
  }

  // Checks a library, a kernel id or a glob over either.
  Status Pattern(const std::string& where, std::string_view name) const {
    const std::string_view library = LibraryOf(name);
    if (library == name || HasGlob(name)) return Library(where, library);
    return Kernel(where, name, [](const Operation&, std::string_view) { return true; });
  }

  // `is_about`: at least one operation of the kernel must satisfy it.
  Status Kernel(const std::string& where, std::string_view id, const Test& is_about) const {
    if (later.contains(LibraryOf(id))) return {};
    bool elsewhere = false;
    std::vector<std::string_view> near, all;
    for (const KernelEntry* k : kernels) {
      const bool covered = AnyVariant(*k->op, is_about);
      if (k->id == id && covered) return {};
      elsewhere |= k->id == id;
      all.push_back(k->id);
      if (covered) near.push_back(k->id);
    }
    std::string fix = NearestKernel(id, near, "");
    if (fix.empty()) fix = elsewhere ? std::string(kListFix) : NearestKernel(id, all, kListFix);
    return {StatusCode::kConfig,
            {.field = where,
             .wanted = elsewhere ? "a kernel of this operation" : "a kernel that is registered",
             .got = "'" + std::string(id) + "'" + (elsewhere ? ", a kernel of another one" : ""),
             .fix = std::move(fix)}};
  }
};

// The libraries that backend_isolation or backend_containers names.
std::vector<std::string> IsolatedNames(const Policy& policy, const char* key) {
  std::vector<std::string> found;
  const auto setting = policy.settings.find(key);
  if (setting == policy.settings.end()) return found;  // a policy made by hand
  const nlohmann::json named = nlohmann::json::parse(setting->second);
  for (const auto& [name, value] : named.items()) {
    if (name != "default") found.push_back(name);
  }
  return found;
}

// Only kernels that a worker can import: no native ones, no functions of this process, and no references, which answer
// when a worker does not.
Status CheckIsolated(const Names& names, const std::string& where, const std::string& name) {
  LZ_RETURN_IF_ERROR(names.Library(where, name));
  const bool compiled_here = name == "inductor";  // for calls of this process
  const bool imported = std::ranges::any_of(names.kernels, [&](const KernelEntry* k) {
    return k->backend && k->backend->name == name && !k->spec.reference;
  });
  if (names.later.contains(name) || (imported && !compiled_here)) return {};
  return {StatusCode::kConfig,
          {.field = where,
           .wanted = "a library of Python kernels that a worker can import",
           .got = "'" + name + "', whose kernels are native, references or made by this process",
           .fix = "leave it out"}};
}

Status CheckRule(const Names& names, const Rule& rule) {
  const struct {
    const char* action;
    const std::vector<std::string>& patterns;
  } lists[] = {{"prefer", rule.prefer}, {"avoid", rule.avoid}, {"deny", rule.deny}, {"allowlist", rule.allow}};
  for (const auto& list : lists) {
    for (const std::string& name : list.patterns) {
      LZ_RETURN_IF_ERROR(names.Pattern(rule.origin + ": rules." + list.action, name));
    }
  }
  if (rule.lock.empty()) return {};
  return names.Kernel(rule.origin + ": rules.lock", rule.lock,
                      [&](const Operation& op, std::string_view id) { return IsAbout(rule, op, id); });
}

}  // namespace

Status CheckKernelNames(const Policy& policy, const Registry& registry, const LibraryNames& later,
                        const Operation* op) {
  const bool names_some = !policy.prefer_sources.empty() || !policy.avoid_sources.empty() ||
                          !policy.allow_sources.empty() || !policy.locks.empty() || !policy.rules.empty();
  const std::vector<std::string> isolated = IsolatedNames(policy, "backend_isolation");
  const std::vector<std::string> contained = IsolatedNames(policy, "backend_containers");
  if (!names_some && isolated.empty() && contained.empty()) return {};
  const Names names(registry, later);
  const struct {
    const char* key;
    const std::vector<std::string>& sources;
  } lists[] = {{"prefer_sources", policy.prefer_sources},
               {"avoid_sources", policy.avoid_sources},
               {"allow_sources", policy.allow_sources}};
  for (const auto& list : lists) {
    for (const std::string& name : list.sources) {
      LZ_RETURN_IF_ERROR(names.Library(policy.origins.at(list.key) + ": " + list.key, name));
    }
  }
  for (const std::string& name : isolated) {
    LZ_RETURN_IF_ERROR(CheckIsolated(names, policy.origins.at("backend_isolation") + ": backend_isolation", name));
  }
  for (const std::string& name : contained) {
    LZ_RETURN_IF_ERROR(CheckIsolated(names, policy.origins.at("backend_containers") + ": backend_containers", name));
  }
  for (const auto& entry : policy.locks) {
    const std::string& lock = entry.first;
    const Test covers = [&](const Operation& of, std::string_view id) { return LockCovers(lock, NamesOf(of, id)); };
    if (op && !AnyVariant(*op, covers)) continue;
    LZ_RETURN_IF_ERROR(names.Kernel(policy.origins.at("locks." + lock) + ": locks." + lock, entry.second, covers));
  }
  for (const Rule& rule : policy.rules) {
    const Test about = [&](const Operation& of, std::string_view id) { return IsAbout(rule, of, id); };
    if (!op || AnyVariant(*op, about)) LZ_RETURN_IF_ERROR(CheckRule(names, rule));
  }
  return {};
}

std::vector<std::string_view> NamesOf(const Operation& op, std::string_view id) {
  std::vector<std::string_view> names = {id, op.name()};
  names.insert(names.end(), op.contract().aliases.begin(), op.contract().aliases.end());
  return names;
}

bool IsAbout(const Rule& rule, const Operation& op, std::string_view id) {
  return std::ranges::any_of(NamesOf(op, id), [&](std::string_view name) { return GlobMatch(rule.operation, name); });
}

std::string NearestOperationFix(const Registry& registry, std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& op : registry.operations()) {
    for (const Variant& v : op->contract().variants) {
      for (std::string_view one : NamesOf(*op, v.id)) names.push_back(one);
    }
  }
  return NearestFix(name, names, kListFix);
}

std::string NearestKernelFix(const Registry& registry, std::string_view id, const Operation* op) {
  std::vector<std::string_view> names;
  const std::vector<const KernelEntry*> kernels = registry.Kernels(op);
  for (const KernelEntry* k : kernels) names.push_back(k->id);
  return NearestKernel(id, names, kListFix);
}

}  // namespace lz
