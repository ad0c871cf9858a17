// Names by which users and descriptors refer to an operation's fields: one table for descriptors, policy rules
// and reports.
//   FieldsOfAlias("head_dim") is {"d_qk", "d_v"}; FieldsOfAlias("s_kv") is {} (not an alias).
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace lz {

struct FieldAlias {
  std::string_view alias;
  // In order of preference: a rule or row applies to every one of them that the operation has. The first also names the
  // field in reports. The fields of attention come first, then those of operations that have other axes.
  std::array<std::string_view, 3> fields;
};

inline constexpr auto kFieldAliases = std::to_array<FieldAlias>({
    {"head_dim", {"d_qk", "d_v"}},
    {"seq_len", {"s_q", "s_kv", "s"}},
    {"max_seq_len", {"s_q", "s_kv", "s"}},
    {"seq_len_q", {"s_q"}},
    {"seq_len_k", {"s_kv"}},
    {"seq_len_kv", {"s_kv"}},
    {"batch_size", {"b"}},
    {"batch", {"b"}},
    {"num_heads", {"h_q"}},
    {"num_q_heads", {"h_q"}},
    {"heads", {"h_q"}},
    {"num_kv_heads", {"h_kv"}},
    {"kv_heads", {"h_kv"}},
    {"gqa_group", {"group"}},
    {"hidden_size", {"hidden"}},
    {"is_causal", {"causal"}},
    {"attn_mask_type", {"attn_mask.given"}},
    {"is_contiguous", {"query.contiguous", "q.contiguous", "input.contiguous"}},
    {"stride_last_dim", {"query.last_dim_stride1", "q.last_dim_stride1", "input.last_dim_stride1"}},
    {"is_cuda_graph_capturing", {"capturing"}},
    {"requires_deterministic", {"policy.deterministic"}},
    {"platform", {"device.platform"}},
    {"sm", {"device.sm"}},
    {"sm_version", {"device.sm"}},
    {"generation", {"device.generation"}},
    {"gpu_generation", {"device.generation"}},
    {"tensor_core_generation", {"device.tensor_core_generation"}},
    {"isa", {"device.isa"}},
    {"driver_version", {"device.driver_version"}},
    {"cuda_version", {"device.cuda_version"}},
});

// The fields that `name` refers to, without the empty tail; empty if `name` is not an alias.
constexpr std::span<const std::string_view> FieldsOfAlias(std::string_view name) {
  for (const FieldAlias& row : kFieldAliases) {
    if (row.alias != name) continue;
    size_t n = 0;
    while (n < row.fields.size() && !row.fields[n].empty()) ++n;
    return std::span<const std::string_view>(row.fields.data(), n);
  }
  return {};
}

// The deprecated and short names of operations (A1) with their targets, each with a condition on `causal`.
struct OperationAlias {
  std::string_view alias;
  std::array<std::string_view, 2> targets;
  int causal;  // 1: only causal calls, 0: only other calls, -1: both
};
inline constexpr auto kOperationAliases = std::to_array<OperationAlias>({
    {"attention.causal", {"attention.standard.prefill", "attention.standard.decode"}, 1},
    {"attention.full", {"attention.standard.prefill", "attention.standard.decode"}, 0},
    {"attention.paged", {"attention.standard.decode.paged"}, -1},
});

}  // namespace lz
