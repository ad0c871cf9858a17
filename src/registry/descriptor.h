// capabilities.json: what a library declares about its kernels (schemas/capabilities.schema.json), as KernelSpecs.
//
//   auto descriptor = ParseDescriptor(text, "flash_attn/capabilities.json", registry);
//   if (!descriptor.ok()) ...  // the backend is disabled: CAPABILITIES_SCHEMA_MISMATCH, the status says where
//   for (const DescribedKernel& k : descriptor->kernels) Register(k.spec, ...);
//
// A fact that is not declared is unsupported: no `supports_x` means no, no `max_head_dim` in attention or `min_sm` on
// CUDA admits nothing (null means "no limit"). registry/fact_table.h has the effect of each fact.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.h"
#include "core/reason.h"
#include "core/status.h"

namespace lz {

class Registry;

// The reason code with which a refused descriptor disables its backend.
inline constexpr ReasonCode kDescriptorRefusal = ReasonCode::kCapabilitiesSchemaMismatch;

// A Python module (or shared library) that the kernels need; it decides NOT_INSTALLED without being imported.
struct Requirement {
  std::string import_name;    // "flash_attn"; dotted names are looked up by their first part
  std::string distribution;   // "flash-attn": its version is compared; empty: no version is required
  std::string min_version;    // inclusive; empty: any
  std::string below_version;  // exclusive; empty: any
  std::string install;        // command that installs it; empty: pip install of the distribution
};

struct DescriptorStorage;  // owns the data that the specs' views refer to

// When a row's kernel is compiled. What is compiled at its first call of a kind must not get a call of another kind.
enum class Jit : uint8_t {
  kNone,       // before the process starts
  kFirstCall,  // by its library, at the first call of each kind: Registry::SetJit says which kinds it has had
  kRecorded,   // by LayerZero, for recorded calls, as kernels of their own: no call gets this row
  kDone,       // such a kernel
};
inline constexpr std::array<std::string_view, 4> kJitNames = {"none", "first_call", "recorded", "done"};

// What distinguishes the kinds of calls for which a kernel is compiled again, besides dtypes, which optional tensors
// are given, options and the layout.
struct JitKey {
  Jit when = Jit::kNone;
  std::vector<std::string> fields;     // by their values: "hidden"
  std::vector<Constraint> conditions;  // by whether they hold: rows == 1
};

// One kernel in one operation. Its views refer to the descriptor's storage.
struct DescribedKernel {
  KernelSpec spec;
  std::string_view adapter;                      // Python function that calls it; empty: found by the kernel's id
  std::string_view workspace_bytes;              // an integer expression of axes and scalars; empty: none
  double transform_cost_hint = 0;                // points of the score
  std::vector<std::string_view> notes;           // free text for readers
  std::vector<const Requirement*> requirements;  // the descriptor's and the kernel's own
  JitKey jit;
};

// Movable, immutable; must outlive everything that holds its views. A registered one lives as long as the process.
struct Descriptor {
  std::string schema_version;
  std::string backend;  // "flash_attn"
  std::string backend_version;
  std::string plugin_origin;  // "builtin", "entry_point", "hub", "function"
  Platform platform = Platform::kAny;
  std::string hash;            // SHA-256 of the text, 64 hexadecimal digits
  std::string probe;           // Python function that raises if the library is broken; empty: none
  std::string library_sha256;  // hash of a C++ plugin's library; empty: not stated
  std::vector<Requirement> requirements;
  std::vector<DescribedKernel> kernels;
  std::shared_ptr<const DescriptorStorage> storage;  // shared with everything that keeps its specs
};

// What a descriptor declares about one kernel beyond its spec.
struct RowExtras {
  std::string descriptor, origin;  // Descriptor::hash and plugin_origin
  std::vector<std::string> notes;
  double transform_cost_hint = 0;
  std::string workspace_bytes;
  JitKey jit;
};
RowExtras ExtrasOf(const Descriptor& descriptor, const DescribedKernel& kernel);

// `what` names the text in messages; operations, their fields and the names of their values are those of `registry`.
// Errors are kConfig; `field` is "<what>: <path in the document>".
Result<Descriptor> ParseDescriptor(std::string_view json, std::string_view what, const Registry& registry);

// SHA-256 as 64 hexadecimal digits.
std::string Sha256Hex(std::string_view bytes);

}  // namespace lz
