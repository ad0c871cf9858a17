// Kernels from outside: libraries described by capabilities.json (C++ plugins: plugin.cpp).
#include <deque>
#include <mutex>

#include "base/json_reader.h"
#include "engine/engine.h"
#include "registry/descriptor.h"

namespace lz {
namespace {

// {kernel id or "*": {"installed": bool, "code": reason code, "detail": text, "version": of the library}}; a kernel
// that is not listed is installed. With "proven": true at the top level the kernels are usable without a probe, as
// functions that the caller has.
Result<Availability> AvailabilityOf(const nlohmann::json& all, std::string_view kernel) {
  auto at = all.find(std::string(kernel));
  if (at == all.end()) at = all.find("*");
  Availability a;
  if (at == all.end()) return a;
  const auto bad = [&](const char* what, const char* wanted) {
    return Status(StatusCode::kConfig,
                  {.field = "availability of " + std::string(kernel) + ": " + what, .wanted = wanted});
  };
  if (!at->is_object()) return bad("entry", "an object");
  if (auto v = at->find("installed"); v != at->end()) {
    if (!v->is_boolean()) return bad("installed", "true or false");
    a.installed = v->get<bool>();
  }
  if (auto v = at->find("code"); v != at->end()) {
    if (!v->is_string()) return bad("code", "a reason code");
    a.code = ReasonCodeFromName(v->get_ref<const std::string&>());
    if (a.code == ReasonCode::kAuto) return bad("code", "a reason code");
  }
  if (auto v = at->find("detail"); v != at->end() && v->is_string()) a.detail = v->get<std::string>();
  if (auto v = at->find("version"); v != at->end() && v->is_string()) a.version = v->get<std::string>();
  return a;
}

}  // namespace

Status Engine::RegisterBackend(std::string_view descriptor, std::string_view availability) {
  auto parsed = ParseDescriptor(descriptor, "capabilities.json", selector_.registry());
  if (!parsed.ok()) return parsed.TakeStatus();
  if (!parsed->library_sha256.empty()) {
    return Status(StatusCode::kConfig, {.field = "capabilities.json: library_sha256",
                                        .wanted = "none: it is for C++ plugins",
                                        .got = parsed->library_sha256});
  }
  auto available = ReadJson(availability, {.what = "availability"});
  if (!available.ok()) return available.TakeStatus();
  if (!available->is_object()) {
    return Status(StatusCode::kConfig, {.field = "availability", .wanted = "an object", .got = JsonText(*available)});
  }
  const auto given = available->find("proven");
  if (given != available->end() && !given->is_boolean()) {
    return Status(StatusCode::kConfig,
                  {.field = "availability: proven", .wanted = "true or false", .got = JsonText(*given)});
  }
  const bool proven = given != available->end() && given->get<bool>();
  // Rules and names of registered kernels are views into the descriptor's storage, which is therefore kept.
  static std::mutex mutex;
  static std::deque<Descriptor> kept;
  std::lock_guard lock(mutex);
  const Descriptor& d = kept.emplace_back(std::move(*parsed));
  Backend* const backend = proven ? nullptr : &selector_.registry().AddBackend(d.backend, d.probe);
  std::vector<Registry::Registration> rows;
  std::deque<RowExtras> extras;
  for (const DescribedKernel& k : d.kernels) {
    auto a = AvailabilityOf(*available, k.spec.id);
    if (!a.ok()) {
      kept.pop_back();
      return a.TakeStatus();
    }
    extras.push_back(ExtrasOf(d, k));
    rows.push_back({&k.spec, std::move(*a), std::string(k.adapter), backend, &extras.back()});
  }
  Status status = selector_.registry().Register(rows);
  if (!status.ok()) {
    kept.pop_back();
    return status;
  }
  selector_.Invalidate(EpochKind::kCapabilities);
  return status;
}

std::string Engine::ProveBackend(std::string_view name) {
  std::string errors;
  for (Backend* backend : selector_.registry().Backends(name)) {
    if (selector_.registry().Adapters(*backend).empty()) continue;  // not installed
    const bool tried = selector_.Prove(*backend);
    if (tried && backend->state.load(std::memory_order_acquire) == Backend::State::kProven) continue;
    errors += (errors.empty() ? "" : "; ") + ProofText(*backend);
  }
  return errors;
}

size_t Engine::Unregister(std::string_view adapter) {
  const size_t removed = selector_.registry().Remove(adapter);
  selector_.Invalidate(EpochKind::kCapabilities);
  return removed;
}

}  // namespace lz
