// The parts of a descriptor around its kernels: header, templates, operations with their aliases, uniqueness, hash.
#include "registry/descriptor.h"

#include <sodium.h>

#include <algorithm>
#include <array>

#include "base/json_reader.h"
#include "platform/device.h"
#include "registry/descriptor_internal.h"
#include "registry/field_alias.h"
#include "registry/registry.h"

namespace lz {
namespace {

using nlohmann::json;

constexpr auto kHeadKeys = std::to_array<std::string_view>({
    "$schema",
    "schema_version",
    "backend",
    "backend_version",
    "platform",
    "plugin_origin",
    "description",
    "library_sha256",
    "probe",
    "requires",
    "templates",
    "ops",
});

Status HeadText(const json& document, const std::string& what, const char* key, bool required, std::string* out) {
  const auto at = document.find(key);
  if (at == document.end()) return required ? DescriptorError(what + ": " + key, "a text", "none") : Status();
  const auto* text = at->get_ptr<const std::string*>();
  if (!text || text->empty()) return DescriptorError(what + ": " + key, "a text", JsonText(*at));
  *out = *text;
  return {};
}

Status ReadHead(const json& document, const std::string& what, Descriptor* out) {
  for (const auto& [key, value] : document.items()) {
    if (std::find(kHeadKeys.begin(), kHeadKeys.end(), key) == kHeadKeys.end()) {
      return DescriptorError(what + ": " + key, "a known key", "'" + key + "'");
    }
  }
  LZ_RETURN_IF_ERROR(HeadText(document, what, "schema_version", true, &out->schema_version));
  if (out->schema_version != "1.0") {
    return DescriptorError(what + ": schema_version", "\"1.0\"", "\"" + out->schema_version + "\"");
  }
  std::string platform;
  out->plugin_origin = "builtin";
  LZ_RETURN_IF_ERROR(HeadText(document, what, "backend", true, &out->backend));
  LZ_RETURN_IF_ERROR(HeadText(document, what, "backend_version", true, &out->backend_version));
  LZ_RETURN_IF_ERROR(HeadText(document, what, "plugin_origin", false, &out->plugin_origin));
  constexpr auto kOrigins = std::to_array<std::string_view>({"builtin", "entry_point", "hub", "function"});
  if (std::ranges::find(kOrigins, out->plugin_origin) == kOrigins.end()) {
    return DescriptorError(what + ": plugin_origin", "builtin, entry_point, hub or function",
                           "\"" + out->plugin_origin + "\"");
  }
  LZ_RETURN_IF_ERROR(HeadText(document, what, "platform", true, &platform));
  LZ_RETURN_IF_ERROR(HeadText(document, what, "library_sha256", false, &out->library_sha256));
  LZ_RETURN_IF_ERROR(HeadText(document, what, "probe", false, &out->probe));
  if (!out->probe.empty() && (out->probe.find(':') == std::string::npos || out->probe.back() == ':')) {
    return DescriptorError(what + ": probe", "\"module:function\"", "\"" + out->probe + "\"");
  }
  const bool hex = out->library_sha256.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!out->library_sha256.empty() && (!hex || out->library_sha256.size() != 64)) {
    return DescriptorError(what + ": library_sha256", "64 lower-case hexadecimal digits",
                           "\"" + out->library_sha256 + "\"");
  }
  const auto at = std::find(kPlatformNames.begin(), kPlatformNames.end(), platform);
  if (at == kPlatformNames.end()) {
    return DescriptorError(what + ": platform", "any, cpu, cuda, rocm, xpu or hpu", "\"" + platform + "\"");
  }
  out->platform = Platform(at - kPlatformNames.begin());
  const auto needed = document.find("requires");
  if (needed == document.end()) return {};
  if (!needed->is_array()) return DescriptorError(what + ": requires", "a list", JsonText(*needed));
  for (size_t i = 0; i < needed->size(); ++i) {
    Requirement requirement;
    LZ_RETURN_IF_ERROR(ReadRequirement((*needed)[i], what + ": requires[" + std::to_string(i) + "]", &requirement));
    out->requirements.push_back(std::move(requirement));
  }
  return {};
}

// Adds the values of the kernel's template for keys that the kernel does not have.
Status Extend(const json& document, const std::string& place, json* kernel) {
  const auto name = kernel->find("extends");
  if (name == kernel->end()) return {};
  const auto* text = name->get_ptr<const std::string*>();
  const auto templates = document.find("templates");
  if (!text || templates == document.end() || !templates->is_object() || !templates->contains(*text)) {
    return DescriptorError(place + ".extends", "the name of a template", JsonText(*name));
  }
  const json& base = (*templates)[*text];
  if (!base.is_object() || base.contains("extends")) {
    return DescriptorError("templates." + *text, "an object without `extends`", JsonText(base));
  }
  for (const auto& [key, value] : base.items()) {
    if (!kernel->contains(key)) (*kernel)[key] = value;
  }
  kernel->erase("extends");
  return {};
}

// The operations that `name` refers to: itself, or the targets of an alias.
std::vector<DescribedOperation> OperationsOf(std::string_view name) {
  for (const OperationAlias& alias : kOperationAliases) {
    if (alias.alias != name) continue;
    std::vector<DescribedOperation> found;
    for (std::string_view target : alias.targets) {
      if (!target.empty()) found.push_back({target, alias.causal});
    }
    return found;
  }
  return {{name, -1}};
}

class OperationReader {
 public:
  OperationReader(const json& document, const std::string& what, const Registry& registry, DescriptorStorage* storage,
                  Descriptor* out)
      : document_(document), what_(what), registry_(registry), storage_(storage), out_(out) {}

  Status ReadAll() {
    const auto ops = document_.find("ops");
    if (ops == document_.end()) return DescriptorError(what_ + ": ops", "an object of operations", "none");
    if (!ops->is_object() || ops->empty()) {
      return DescriptorError(what_ + ": ops", "an object of operations", JsonText(*ops));
    }
    for (const auto& [operation, kernels] : ops->items()) {
      const std::string place = what_ + ": ops." + operation;
      if (!kernels.is_array()) return DescriptorError(place, "a list of kernels", JsonText(kernels));
      for (size_t i = 0; i < kernels.size(); ++i) {
        LZ_RETURN_IF_ERROR(ReadKernel(operation, kernels[i], place + "[" + std::to_string(i) + "]"));
      }
    }
    return {};
  }

 private:
  Status ReadKernel(const std::string& operation, const json& value, const std::string& place) {
    if (!value.is_object()) return DescriptorError(place, "an object", JsonText(value));
    json kernel = value;
    LZ_RETURN_IF_ERROR(Extend(document_, place, &kernel));
    for (const auto& [key, ignored] : kernel.items()) {
      if (!KernelReader::IsKnownKey(key)) return DescriptorError(place + "." + key, "a known key", "'" + key + "'");
    }
    std::vector<std::string> names = {operation};
    if (const auto also = kernel.find("also_operations"); also != kernel.end() && !also->is_null()) {
      if (!also->is_array())
        return DescriptorError(place + ".also_operations", "a list of operations", JsonText(*also));
      for (const json& name : *also) {
        const auto* text = name.get_ptr<const std::string*>();
        if (!text) return DescriptorError(place + ".also_operations", "a list of operations", JsonText(name));
        names.push_back(*text);
      }
    }
    for (const std::string& name : names) {
      for (DescribedOperation target : OperationsOf(name)) {
        target.op = registry_.Find(target.id);
        if (!target.op || Registry::VariantIndex(*target.op, target.id) < 0) {
          return DescriptorError(place, "a known operation by its id, see `layerzero list`", "'" + name + "'");
        }
        target.id = storage_->Keep(std::string(target.id));
        LZ_RETURN_IF_ERROR(ReadFor(kernel, place, target));
      }
    }
    return {};
  }

  // Reads the kernel for one operation, and for its grouped variant if the kernel declares grouped heads.
  Status ReadFor(const json& kernel, const std::string& place, DescribedOperation operation) {
    bool grouped = false;
    LZ_RETURN_IF_ERROR(Add(kernel, place, operation, &grouped));
    operation.id = GroupedVariantOf(operation.op->contract(), operation.id);
    if (!grouped || operation.id.empty()) return {};
    return Add(kernel, place, operation, &grouped);
  }

  Status Add(const json& kernel, const std::string& place, DescribedOperation operation, bool* grouped) {
    KernelReader reader(kernel, place, operation, out_->platform, storage_);
    DescribedKernel described;
    LZ_RETURN_IF_ERROR(reader.Read(&described));
    *grouped = reader.supports_gqa();
    if (described.spec.source.empty()) {
      described.spec.source = described.spec.id.substr(0, described.spec.id.find('.'));
    }
    const auto same = [&](const DescribedKernel& other) {
      return other.spec.id == described.spec.id && other.spec.operation == described.spec.operation;
    };
    if (std::any_of(out_->kernels.begin(), out_->kernels.end(), same)) {
      return DescriptorError(place + ".kernel_id", "an id once in " + std::string(operation.id),
                             "'" + std::string(described.spec.id) + "' again");
    }
    out_->kernels.push_back(std::move(described));
    return {};
  }

  const json& document_;
  const std::string& what_;
  const Registry& registry_;
  DescriptorStorage* storage_;
  Descriptor* out_;
};

}  // namespace

Status DescriptorError(const std::string& place, std::string wanted, std::string got) {
  return Status(StatusCode::kConfig, {.field = place,
                                      .wanted = std::move(wanted),
                                      .got = std::move(got),
                                      .fix = "CAPABILITIES_SCHEMA_MISMATCH: the backend is disabled until its "
                                             "descriptor follows schemas/capabilities.schema.json"});
}

Status ReadRequirement(const json& value, const std::string& place, Requirement* out) {
  if (!value.is_object()) return DescriptorError(place, "an object", JsonText(value));
  const auto targets = std::to_array<std::pair<std::string_view, std::string*>>({
      {"import", &out->import_name},
      {"distribution", &out->distribution},
      {"min_version", &out->min_version},
      {"below_version", &out->below_version},
      {"install", &out->install},
  });
  for (const auto& [key, item] : value.items()) {
    const auto at =
        std::find_if(targets.begin(), targets.end(), [&key = key](const auto& t) { return t.first == key; });
    if (at == targets.end()) return DescriptorError(place + "." + key, "a known key", "'" + key + "'");
    const auto* text = item.get_ptr<const std::string*>();
    if (!text || text->empty()) return DescriptorError(place + "." + key, "a text", JsonText(item));
    *at->second = *text;
  }
  if (out->import_name.empty()) return DescriptorError(place + ".import", "an import name", "none");
  if (out->distribution.empty() && !(out->min_version.empty() && out->below_version.empty())) {
    return DescriptorError(place + ".distribution", "the distribution whose version is meant", "none");
  }
  return {};
}

RowExtras ExtrasOf(const Descriptor& descriptor, const DescribedKernel& kernel) {
  return {.descriptor = descriptor.hash,
          .origin = descriptor.plugin_origin,
          .notes = {kernel.notes.begin(), kernel.notes.end()},
          .transform_cost_hint = kernel.transform_cost_hint,
          .workspace_bytes = std::string(kernel.workspace_bytes),
          .jit = kernel.jit};
}

std::string Sha256Hex(std::string_view bytes) {
  unsigned char digest[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(digest, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  char text[2 * crypto_hash_sha256_BYTES + 1];
  sodium_bin2hex(text, sizeof(text), digest, sizeof(digest));
  return text;
}

Result<Descriptor> ParseDescriptor(std::string_view text, std::string_view what, const Registry& registry) {
  const std::string name(what);
  auto document = ReadJson(text, {.what = name});
  if (!document.ok()) {
    const ErrorParts& parts = document.status().parts();
    return DescriptorError(parts.field, parts.wanted, parts.got);
  }
  if (!document->is_object()) return DescriptorError(name, "an object", JsonText(*document));
  Descriptor descriptor;
  auto storage = std::make_shared<DescriptorStorage>();
  Status status = ReadHead(*document, name, &descriptor);
  if (!status.ok()) return status;
  descriptor.hash = Sha256Hex(text);
  status = OperationReader(*document, name, registry, storage.get(), &descriptor).ReadAll();
  if (!status.ok()) return status;
  for (const Requirement& r : descriptor.requirements) storage->requirements.push_back(r);
  const size_t own = storage->requirements.size() - descriptor.requirements.size();
  for (DescribedKernel& kernel : descriptor.kernels) {
    for (size_t i = own; i < storage->requirements.size(); ++i) {
      kernel.requirements.push_back(&storage->requirements[i]);
    }
  }
  descriptor.storage = std::move(storage);
  return descriptor;
}

}  // namespace lz
