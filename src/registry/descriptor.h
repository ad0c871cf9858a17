// capabilities.json: what a backend library says about its kernels (schemas/capabilities.schema.json), as KernelSpecs.
//
//   auto descriptor = ParseDescriptor(text, "flash_attn/capabilities.json", registry);
//   if (!descriptor.ok()) ...  // the backend is disabled: CAPABILITIES_SCHEMA_MISMATCH, the status says where
//   for (const DescribedKernel& k : descriptor->kernels) Register(k.spec, ...);
//
// A fact that is not declared is unsupported: no `supports_x` means no, no `max_head_dim` in attention or `min_sm` on
// CUDA admits nothing (null says "no limit"). What each fact does is in registry/fact_table.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.h"
#include "core/reason.h"
#include "core/status.h"

namespace lz {

class Registry;

// What a descriptor that is refused disables its backend with.
inline constexpr ReasonCode kDescriptorRefusal = ReasonCode::kCapabilitiesSchemaMismatch;

// A Python module (or shared library) that the kernels need; NOT_INSTALLED is decided by it without importing it.
struct Requirement {
  std::string import_name;    // "flash_attn"; dotted names are found by their first part
  std::string distribution;   // "flash-attn": whose version is compared; empty: no version is asked
  std::string min_version;    // inclusive; empty: any
  std::string below_version;  // exclusive; empty: any
  std::string install;        // command that installs it; empty: pip install of the distribution
};

struct DescriptorStorage;  // owns what the specs' views point to

// One kernel in one operation. Views point into the descriptor's storage.
struct DescribedKernel {
  KernelSpec spec;
  std::string_view adapter;                      // Python function that calls it; empty: found by the id
  std::string_view workspace_bytes;              // an integer expression of axes and scalars; empty: none
  double transform_cost_hint = 0;                // points of the score
  std::vector<std::string_view> notes;           // for people
  std::vector<const Requirement*> requirements;  // the descriptor's and the kernel's own
};

// Movable, immutable; must outlive everything that holds its views. A registered one lives as long as the process.
struct Descriptor {
  std::string schema_version;
  std::string backend;  // "flash_attn"
  std::string backend_version;
  std::string plugin_origin;  // "builtin", "entry_point", "hub", "function"
  Platform platform = Platform::kAny;
  std::string hash;            // SHA-256 of the text, 64 hexadecimal digits
  std::string probe;           // Python function that raises where the library is broken; empty: none
  std::string library_sha256;  // of a C++ plugin's library; empty: not stated
  std::vector<Requirement> requirements;
  std::vector<DescribedKernel> kernels;
  std::shared_ptr<const DescriptorStorage> storage;  // shared by whoever keeps specs of it
};

// What a descriptor says of one kernel beyond its spec.
struct RowExtras {
  std::string descriptor, origin;  // Descriptor::hash and plugin_origin
  std::vector<std::string> notes;
  double transform_cost_hint = 0;
  std::string workspace_bytes;
};
RowExtras ExtrasOf(const Descriptor& descriptor, const DescribedKernel& kernel);

// `what` names the text in messages; operations, their fields and the names of their values are those of `registry`.
// Errors are kConfig; `field` is "<what>: <path in the document>".
Result<Descriptor> ParseDescriptor(std::string_view json, std::string_view what, const Registry& registry);

// SHA-256 as 64 hexadecimal digits.
std::string Sha256Hex(std::string_view bytes);

}  // namespace lz
