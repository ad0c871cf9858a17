// Which kernels serve an operation and a dtype on a device, by the rows that can be checked without a call: those on
// the device and on the dtype of the first tensor.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace lz {
namespace {

using Json = nlohmann::ordered_json;

enum class Cover { kNone, kServes, kNotBuilt, kNotInstalled };

// The result of the rows on device and dtype. A row on the architectures that this binary has code for does not belong
// to the kernel: in another build the kernel serves the device.
Cover CoverOf(const KernelEntry& k, const Device& device, DType dtype) {
  bool built = true;
  const std::string first = k.op->num_inputs() > 0 ? std::string(k.op->input(0).name) + ".dtype" : "";
  for (const Row& row : k.rows) {
    if (row.predicate >= 0) continue;
    const Field& field = k.op->fields()[row.field];
    const bool on_device = field.home == FieldHome::kDevice;
    if (!on_device && field.name != "dtype" && field.name != first) continue;
    const int64_t value = on_device ? device.facts[field.slot] : int64_t(dtype);
    if (Holds(row.rel, value, row.operand, row.set)) continue;
    if (row.code != ReasonCode::kNotBuilt) return Cover::kNone;
    built = false;
  }
  if (!built) return Cover::kNotBuilt;
  return device.simulated || k.availability.installed ? Cover::kServes : Cover::kNotInstalled;
}

Json EntryJson(const Operation& op, size_t variant, DType dtype, const Device& device,
               const std::vector<const KernelEntry*>& kernels) {
  Json entry = {{"operation", op.contract().variants[variant].id},
                {"name", op.name()},
                {"device", device.name},
                {"dtype", dtype == DType::kUnknown ? Json(nullptr) : Json(Info(dtype).name)},
                {"kernels", Json::array()},
                {"references", Json::array()},
                {"not_built", Json::array()},
                {"not_installed", Json::array()}};
  for (const KernelEntry* k : kernels) {
    if (k->variant != variant) continue;
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
    std::vector<const KernelEntry*> kernels = selector_.registry().Kernels(op.get());
    std::ranges::sort(kernels, [](const KernelEntry* a, const KernelEntry* b) {
      return std::pair(-a->spec.priority, std::string_view(a->id)) <
             std::pair(-b->spec.priority, std::string_view(b->id));
    });
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

}  // namespace lz
