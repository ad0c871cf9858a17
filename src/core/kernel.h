// The specification of a kernel. Everything is constexpr data: building the registry runs no code of a kernel except
// `open`, where one needs a C library.
//
// A kernel file is kernels/<operation path>/<provider>_<variant>.cpp and ends with
//   constexpr auto kFamily = std::to_array<lz::KernelSpec>({{...}});
//   LZ_KERNEL_FAMILY = kFamily;
// A missing field means unsupported: no dtypes = never admissible; an optional parameter that is not in `accepts` must
// be absent; a tensor must be contiguous unless `strides` allows more.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/dtype.h"
#include "core/reason.h"
#include "layerzero/c_abi.h"

namespace lz {

// One condition: `field rel operand`. A kernel's `constraints` are hard rules. Fields of an operation:
//   axes and derived facts by name ("s_kv", "group"); integer expressions of axes ("b * h_q");
//   "dtype" (the first tensor's) and "<tensor>.dtype"; "<tensor>.given", "<tensor>.ndim", "<tensor>.contiguous",
//   "<tensor>.last_dim_stride1", "<tensor>.columns_dense" (the last axis but one has stride 1: a column-major matrix),
//   "<tensor>.alignment" (log2 of the largest power of two that divides address and outer strides in bytes, at most 7),
//   "<tensor>.broadcast" (some stride is 0), "<tensor>.one_element"; scalars: bool and choice by name, integers by
//   name, "<scalar>.given"; "device.type", "device.sm", "device.isa", "device.generation", ... (see
//   platform/device.h); "capturing", "requires_grad"; "policy.tp.size", ... (see registry/policy_field.h).
struct Constraint {
  std::string_view field;
  Rel rel;
  int64_t operand = 0;
  std::span<const int64_t> set = {};    // kInSet
  ReasonCode code = ReasonCode::kAuto;  // kAuto: derived from field and relation
  // A fact of the device or the policy that the field is compared with in place of `operand`:
  // {.field = "b * h_q", .rel = Rel::kLe, .fact = "device.max_grid_x"}.
  std::string_view fact = {};
};

enum class Platform : uint8_t { kAny, kCpu, kCuda, kRocm, kXpu, kHpu };

// What a kernel requires of the memory layout of its tensors.
enum class Strides : uint8_t {
  kContiguous,    // every tensor is contiguous
  kLastDimDense,  // the last stride is 1, others are free
  kAny,
};

enum class CallKind : uint8_t { kNative, kHost };

// How a kernel's results differ from exact arithmetic (KERNELS 0.3); measured, or declared in descriptors. Empty:
// A11's tolerance.
using NumericsClass = std::string_view;

// The order in which a kernel adds the terms of a sum: that of the indices, a fixed binary tree, a ring of ranks, or
// one that is not known.
enum class ReductionOrder : uint8_t { kArbitrary, kCanonical, kTree, kRing };

// What a kernel promises about results under tensor parallelism.
struct TpInvariance {
  bool is_tp_invariant = false;  // the same bits whatever the tensor-parallel size
  ReductionOrder reduction_order = ReductionOrder::kArbitrary;
  int32_t max_tp_size = 0;  // 0: any
};

// The priority of some of a kernel's calls, where it is not equally fast for all sizes, dtypes or devices:
//   constexpr auto kManyRows = std::to_array<Constraint>({{"rows", Rel::kGe, 1024}});
//   constexpr auto kPreferences = std::to_array<Preference>({{.when = kManyRows, .priority = 5}});
// Constraints say which calls a kernel computes correctly, preferences which of those it should get.
struct Preference {
  std::span<const Constraint> when;  // all hold; at least one; their codes are not used
  int32_t priority;                  // 0 to 100
};

// The priority of calls that a kernel computes correctly, but that every other kernel gets before it.
inline constexpr int32_t kAfterOthers = 0;

struct KernelSpec {
  std::string_view id;  // never changes; "hwy.norm.rms": provider first
  std::string_view operation;
  std::string_view source = {};  // empty: the id up to its first dot
  uint32_t version = 1;
  Platform platform = Platform::kCpu;
  DTypeMask dtypes = 0;  // dtypes of the first tensor
  std::span<const Constraint> constraints = {};
  std::span<const std::string_view> accepts = {};  // optional parameters that it takes; {"*"}: all
  Strides strides = Strides::kContiguous;
  int32_t priority = 50;  // 0 to 100; orders kernels without measurements
  // In order: the first one whose conditions hold for a call replaces `priority`.
  std::span<const Preference> preferences = {};
  bool deterministic = false;
  bool cuda_graph_safe = false;
  bool requires_grad = false;  // its result supports autograd
  bool reference = false;      // the operation's reference: selected when no other kernel is admissible
  NumericsClass numerics = {};
  TpInvariance tp = {};
  CallKind call = CallKind::kNative;
  lz_launch_fn launch = nullptr;
  lz_workspace_fn workspace = nullptr;
  // For kernels of a C library (kernels/library.h): opens it at `path`, which is null if the user named none for
  // this source. Returns null, or the reason why it cannot be used. Called at registration; the first path of the
  // process counts.
  const char* (*open)(const char* path) = nullptr;
};

using KernelFamily = std::span<const KernelSpec>;

inline constexpr std::array<std::string_view, 1> kAcceptsAll = {"*"};

}  // namespace lz

// Defines this file's family under the name that the generated table refers to (the build sets LZ_FAMILY_SYMBOL).
#define LZ_KERNEL_FAMILY                      \
  namespace lz::kernels {                     \
  extern const KernelFamily LZ_FAMILY_SYMBOL; \
  }                                           \
  constinit const lz::KernelFamily lz::kernels::LZ_FAMILY_SYMBOL
