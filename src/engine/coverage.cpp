// Which kernels serve an operation and a dtype on a device, by the rows that can be checked without a call: those on
// the device and on the dtype of the first tensor. Kernels are in the order of their priorities there. And which
// operations a kernel serves.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/engine.h"

namespace lz {
namespace {

using Json = nlohmann::ordered_json;

enum class Cover { kNone, kServes, kNotBuilt, kNotInstalled };

// nullopt: it depends on the call.
std::optional<bool> HoldsThere(const Operation& op, const Row& row, const Device& device, DType dtype) {
  if (row.predicate >= 0) return std::nullopt;
  const Field& field = op.fields()[row.field];
  const bool on_device = field.home == FieldHome::kDevice;
  const std::string first = op.num_inputs() > 0 ? std::string(op.input(0).name) + ".dtype" : "";
  if (row.fact >= 0 || (!on_device && field.name != "dtype" && field.name != first)) return std::nullopt;
  return Holds(row.rel, on_device ? device.facts[field.slot] : int64_t(dtype), row.operand, row.set);
}

// The highest priority that the kernel has for some call there.
int32_t PriorityOf(const KernelEntry& k, const Device& device, DType dtype) {
  int32_t highest = 0;
  for (const ResolvedPreference& p : k.preferences) {
    bool always = true, never = false;
    for (const Row& row : p.when) {
      const std::optional<bool> holds = HoldsThere(*k.op, row, device, dtype);
      never |= holds == false;
      always &= holds == true;
    }
    if (never) continue;
    highest = std::max(highest, p.priority);
    if (always) return highest;
  }
  return std::max(highest, k.spec.priority);
}

// The result of the rows on device and dtype. A row on the architectures that this binary has code for does not belong
// to the kernel: in another build the kernel serves the device.
Cover CoverOf(const KernelEntry& k, const Device& device, DType dtype) {
  bool built = true;
  for (const Row& row : k.rows) {
    if (HoldsThere(*k.op, row, device, dtype).value_or(true)) continue;
    if (row.code != ReasonCode::kNotBuilt) return Cover::kNone;
    built = false;
  }
  if (!built) return Cover::kNotBuilt;
  return device.simulated || k.availability.installed ? Cover::kServes : Cover::kNotInstalled;
}

Json EntryJson(const Operation& op, size_t variant, DType dtype, const Device& device,
               std::vector<const KernelEntry*> kernels) {
  std::ranges::sort(kernels, {}, [&](const KernelEntry* k) {
    return std::pair(-PriorityOf(*k, device, dtype), std::string_view(k->id));
  });
  Json entry = {{"operation", op.contract().variants[variant].id},
                {"name", op.name()},
                {"device", device.name},
                {"dtype", dtype == DType::kUnknown ? Json(nullptr) : Json(Info(dtype).name)},
                {"kernels", Json::array()},
                {"references", Json::array()},
                {"not_built", Json::array()},
                {"not_installed", Json::array()}};
  for (const KernelEntry* k : kernels) {
    if (k->variant != variant || k->jit.when == Jit::kRecorded) continue;
    switch (CoverOf(*k, device, dtype)) {
      case Cover::kServes: entry[k->spec.reference ? "references" : "kernels"].push_back(k->id); break;
      case Cover::kNotBuilt: entry["not_built"].push_back(k->id); break;
      case Cover::kNotInstalled: entry["not_installed"].push_back(k->id); break;
      case Cover::kNone: break;
    }
  }
  return entry;
}

}  // namespace

Result<std::string> Engine::Coverage(std::string_view name) {
  auto index = selector_.context().FindByName(name);
  if (!index.ok()) return index.TakeStatus();
  const Device& device = selector_.context().device(*index);
  Json j = Json::array();
  for (const auto& op : operations()) {
    const std::vector<const KernelEntry*> kernels = selector_.registry().Kernels(op.get());
    for (size_t variant = 0; variant < op->contract().variants.size(); ++variant) {
      if (op->num_inputs() == 0) {
        j.push_back(EntryJson(*op, variant, DType::kUnknown, device, kernels));
        continue;
      }
      for (size_t i = 1; i < kDTypes.size(); ++i) {
        if (op->input(0).dtypes >> i & 1) j.push_back(EntryJson(*op, variant, DType(i), device, kernels));
      }
    }
  }
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Engine::FunctionsOf(std::string_view kernel_id) const {
  Json names = Json::array();
  for (const KernelEntry* k : selector_.registry().Kernels(nullptr)) {
    if (k->id != kernel_id) continue;
    Json name = k->op->name();
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return names.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lz
