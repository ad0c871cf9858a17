// kv.page_table: a page list in CSR form as a table, with the offsets of packed queries.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::kv_page_table {

enum Tensor { kKVIndptr, kKVIndices, kKVLastPageLen, kQOIndptr, kBlockTables, kKVLens, kQOOffsets };
enum Scalar { kNumPages, kPageSize, kTotalQ };
enum Axis { kNumIndices, kB };

inline constexpr auto kVariants = std::to_array<Variant>({{"kv.page_table"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("kv_indptr", "b + 1", kIndices, "first listed page of each sequence, then the end"),
    TensorParam("kv_indices", "num_indices", kIndices, "page numbers of all sequences"),
    TensorParam("kv_last_page_len", "b", kIndices, "entries in use in the last page of each sequence"),
    RequiredInt("num_pages", "pages of the cache"),
    RequiredInt("page_size", "entries of a page"),
    KeywordOnly(OptionalTensor("qo_indptr", "b + 1", kIndices, "first query of each sequence, then the end")),
    KeywordOnly(Int("total_q", 0, "queries of all sequences")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "block_tables", .shape = "b + 1, num_indices", .dtype = "int32", .doc = "pages of each sequence"},
    {.name = "kv_lens", .shape = "b + 1", .dtype = "int32", .doc = "keys of each sequence"},
    {.name = "qo_offsets",
     .shape = "b + 2",
     .dtype = "int32",
     .doc = "first query of each sequence, then the end",
     .only_if = "qo_indptr"},
});

inline Status Canonicalize(BoundArgs& args) {
  const auto in_range = [&](Scalar s, std::string_view name, int64_t least) -> Status {
    const int64_t value = args.scalars[s].value.i;
    if (value >= least && value <= INT32_MAX) return {};
    return {StatusCode::kInvalidRequest,
            {std::string(name), std::to_string(least) + " to 2147483647", std::to_string(value),
             "pass the size of the cache or of the query"}};
  };
  LZ_RETURN_IF_ERROR(in_range(kNumPages, "num_pages", 0));
  LZ_RETURN_IF_ERROR(in_range(kPageSize, "page_size", 1));
  LZ_RETURN_IF_ERROR(in_range(kTotalQ, "total_q", 0));
  if (args.axes[kNumIndices] <= INT32_MAX / args.scalars[kPageSize].value.i) return {};
  return {StatusCode::kInvalidRequest,
          {"kv_indices", "at most 2147483647 entries of all pages", std::to_string(args.axes[kNumIndices]) + " pages",
           "split the batch"}};
}

inline constexpr Contract kContract = {
    .name = "kv_page_table",
    .summary = "A page list in CSR form as a table of pages, for functions that take block tables.",
    .definition =
        "Sequence s has the n pages of kv_indices from f = kv_indptr[s] up to kv_indptr[s + 1], offsets limited to "
        "[0, num_indices]; n is 0 if they decrease. block_tables[s, i] = kv_indices[f + i], limited to "
        "[0, num_pages - 1], for i < n, and 0 after that. kv_lens[s] = (n - 1) page_size + l, at least 0, with l = "
        "min(kv_last_page_len[s], page_size); 0 if n is 0. Sequence b, which is not listed, has neither pages nor "
        "keys: "
        "it is for queries that belong to no sequence. qo_offsets[s] is the largest of qo_indptr[0] to qo_indptr[s], "
        "limited to [0, total_q], and qo_offsets[b + 1] = total_q. No index data is an error: nothing outside of the "
        "cache is named.",
    .source = "definition",
    .replaces = "kv_indices[(kv_indptr[:-1, None] + torch.arange(n)).clamp(max=n - 1)].clamp(0, num_pages - 1)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::kv_page_table
