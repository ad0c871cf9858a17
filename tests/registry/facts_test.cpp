// Every fact of the table does what its use says: rules become rows, and what is not supported is refused.
#include "registry/fact_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "platform/device.h"
#include "registry/descriptor.h"
#include "registry/registry.h"
#include "test_paths.h"

namespace lz {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using V = std::vector<std::string>;

const Registry& Operations() {
  static const Registry registry;
  return registry;
}
json Minimal(json facts, const std::string& operation) {
  json row = {{"kernel_id", "x.y"}, {"dtypes", {"float32"}}, {"requires_layouts", {"any"}}};
  if (operation.starts_with("attention.")) row.update({{"max_head_dim", nullptr}, {"supports_gqa", true}});
  row.update(facts);
  if (row.contains("supported_dtypes")) row.erase("dtypes");
  return {{"schema_version", "1.0"},
          {"backend", "x"},
          {"backend_version", "1"},
          {"platform", "any"},
          {"ops", {{operation, {row}}}}};
}
std::string Refusal(json facts, const std::string& operation = "norm.rms") {
  auto descriptor = ParseDescriptor(Minimal(std::move(facts), operation).dump(), "x.json", Operations());
  return descriptor.ok() ? "accepted" : descriptor.status().Text();
}
// Rows with their codes, then the dtypes and optional parameters that are accepted: everything that decides.
V Rows(json facts, const std::string& operation = "norm.rms") {
  auto descriptor = ParseDescriptor(Minimal(std::move(facts), operation).dump(), "x.json", Operations());
  EXPECT_TRUE(descriptor.ok()) << descriptor.status().Text();
  if (!descriptor.ok()) return {"refused"};
  const DescribedKernel& k = descriptor->kernels.at(0);
  V rows;
  for (const Constraint& c : k.spec.constraints) {
    std::string text = std::string(c.field) + " " + std::string(RelText(c.rel));
    for (int64_t value : c.set) text += " " + std::to_string(value);
    if (c.rel != Rel::kInSet) text += " " + std::to_string(c.operand);
    rows.push_back(text + " " + std::string(Info(c.code).name));
  }
  return rows;
}
std::vector<std::string> Accepted(json facts, const std::string& operation) {
  auto descriptor = ParseDescriptor(Minimal(std::move(facts), operation).dump(), "x.json", Operations());
  EXPECT_TRUE(descriptor.ok()) << descriptor.status().Text();
  const auto& accepts = descriptor->kernels.at(0).spec.accepts;
  return {accepts.begin(), accepts.end()};
}
DTypeMask Dtypes(json facts, const std::string& operation = "norm.rms") {
  auto descriptor = ParseDescriptor(Minimal(std::move(facts), operation).dump(), "x.json", Operations());
  EXPECT_TRUE(descriptor.ok()) << descriptor.status().Text();
  return descriptor.ok() ? descriptor->kernels.at(0).spec.dtypes : 0;
}

constexpr const char* kDense = "attention.standard.prefill";
constexpr const char* kPaged = "attention.standard.decode.paged";

// A value of each fact that must change something: a row, the spec, or a refusal. A fact of the table without one
// fails.
std::map<std::string_view, std::pair<std::string, json>> Examples() {
  return {
      {"kernel_id", {"norm.rms", "x.other"}},
      {"version", {"norm.rms", 7}},
      {"source", {"norm.rms", "other"}},
      {"platform", {"norm.rms", "cpu"}},
      {"adapter", {"norm.rms", "m:f"}},
      {"also_operations", {"norm.rms", {"norm.layer"}}},
      {"requires", {"norm.rms", {{{"import", "lib"}}}}},
      {"notes", {"norm.rms", {"a note"}}},
      {"dtypes", {"norm.rms", {"float16"}}},
      {"supported_dtypes", {"norm.rms", {"float16"}}},
      {"requires_dtype", {"norm.rms", "float64"}},  // not among the dtypes: refused
      {"supports_bfloat16", {"norm.rms", true}},
      {"supports_fp8", {"mlp.linear.quantized", true}},
      {"supports_int8", {"mlp.linear.quantized", true}},
      {"supports_mxfp4", {"mlp.linear.quantized", true}},
      {"supports_nvfp4", {"mlp.linear.quantized", true}},
      {"supported_quant_dtypes", {"quantize", {"int8"}}},
      {"quantization_requires_scales", {"quantize", true}},
      {"quantization_scale_granularity", {"quantize", "per_tensor"}},
      {"quantization_zero_point", {"quantize", true}},
      {"requires_packed_weights", {"mlp.linear.quantized", true}},
      {"requires_layouts", {kDense, {"BHSD"}}},
      {"produces_layout", {kDense, "BHSD"}},  // requires_layouts is ["any"]: refused
      {"supports_kv_cache_layouts", {"kv.append_paged", {"HND"}}},
      {"supports_kv_cache_dtypes", {kPaged, {"int8"}}},
      {"min_sm", {"norm.rms", 80}},
      {"max_sm", {"norm.rms", 90}},
      {"supported_generations", {"norm.rms", {"hopper"}}},
      {"requires_tensor_core_gen", {"norm.rms", 4}},
      {"instruction_set", {"norm.rms", "wgmma"}},
      {"cpu_isa", {"norm.rms", {"avx2"}}},
      {"min_driver_version", {"norm.rms", "520.0"}},
      {"min_cuda_version", {"norm.rms", "12.0"}},
      {"min_head_dim", {kDense, 8}},
      {"max_head_dim", {kDense, 64}},
      {"head_dim_multiple", {kDense, 8}},
      {"head_dims", {kDense, {64}}},
      {"equal_head_dims", {kDense, true}},
      {"max_seq_len", {kDense, 64}},
      {"supports_gqa", {kDense, false}},
      {"gqa_groups", {"attention.gqa.prefill", {1, 2}}},
      {"supports_causal", {kDense, true}},
      {"supports_attn_mask", {kDense, true}},
      {"supported_attn_mask_types", {kDense, {"none", "bool"}}},
      {"supports_dropout", {kDense, true}},
      {"supports_scale", {kDense, false}},
      {"supports_grad", {"norm.rms", true}},
      {"accepts", {"norm.rms", {"weight"}}},
      {"masked_v_nan", {kDense, "propagates"}},
      {"requires_last_dim_stride1", {"norm.rms", true}},
      {"requires_contiguous", {"norm.rms", false}},
      {"requires_aligned", {"norm.rms", {{"input", 16}}}},
      {"is_cuda_graph_safe", {"norm.rms", true}},
      {"deterministic", {"norm.rms", true}},
      {"reference", {"norm.rms", true}},
      {"numerics", {"norm.rms", "a"}},
      {"grid_layout", {kDense, {{"x", "batch"}}}},
      {"constraints", {"norm.rms", {{{"field", "hidden"}, {"relation", "<="}, {"operand", 8}}}}},
      {"workspace_bytes", {"norm.rms", "hidden * 4"}},
      {"priority", {"norm.rms", 7}},
      {"preferences",
       {"norm.rms", {{{"when", {{{"field", "hidden"}, {"relation", "<="}, {"operand", 8}}}}, {"priority", 3}}}}},
      {"transform_cost_hint", {"norm.rms", 12}},
      {"produces_dtype", {"norm.rms", "float32"}},
      {"supports_prepack", {"norm.rms", true}},
      {"supports_kv_strategies", {kPaged, {"paged"}}},
      {"shape_sensitive_graph_safety", {"norm.rms", true}},
      {"fuses_ops", {"norm.rms", {"posenc.rope"}}},
      {"tp_invariance", {"norm.rms", {{"max_tp_size", 2}}}},
      {"jit", {"norm.rms", {{"seconds", 3}}}},
      {"supports_offsets", {"norm.rms", true}},
      {"supports_normalizers", {"norm.rms", {"nfc"}}},
      {"supports_pretokenizers", {"norm.rms", {"bytes"}}},
      {"tokenizer_ids", {"norm.rms", {"a"}}},
      {"vocab_hashes", {"norm.rms", {"a"}}},
  };
}

// Everything that a descriptor says of its kernels, as text.
std::string Everything(const json& facts, const std::string& operation) {
  auto descriptor = ParseDescriptor(Minimal(facts, operation).dump(), "x.json", Operations());
  if (!descriptor.ok()) return descriptor.status().Text();
  std::string text;
  for (const DescribedKernel& k : descriptor->kernels) {
    const KernelSpec& s = k.spec;
    text += std::string(s.id) + "|" + std::string(s.operation) + "|" + std::string(s.source) + "|" +
            std::to_string(s.version) + "|" + std::to_string(int(s.platform)) + "|" + std::to_string(s.dtypes) + "|" +
            std::to_string(int(s.strides)) + "|" + std::to_string(s.priority) + "|" + std::to_string(s.deterministic) +
            std::to_string(s.cuda_graph_safe) + std::to_string(s.requires_grad) + std::to_string(s.reference) + "|" +
            std::string(s.numerics) + "|" + std::to_string(s.tp.is_tp_invariant) + std::to_string(s.tp.max_tp_size) +
            std::to_string(int(s.tp.reduction_order)) + "|" + std::string(k.adapter) + "|" +
            std::string(k.workspace_bytes) + "|" + std::to_string(k.transform_cost_hint) + "|" +
            std::to_string(k.requirements.size()) + "|";
    for (std::string_view note : k.notes) text += std::string(note) + ",";
    for (std::string_view name : s.accepts) text += std::string(name) + ",";
    const auto add = [&](const Constraint& c) {
      text += std::string(c.field) + std::string(RelText(c.rel)) + std::to_string(c.operand) + ":";
      for (int64_t value : c.set) text += std::to_string(value) + ",";
    };
    for (const Constraint& c : s.constraints) add(c);
    for (const Preference& p : s.preferences) {
      text += "|" + std::to_string(p.priority);
      for (const Constraint& c : p.when) add(c);
    }
  }
  return text;
}

TEST(Facts, EachHasAnEffectOrIsRefused) {
  const auto examples = Examples();
  std::set<std::string_view> names;
  for (const Fact& fact : kFacts) {
    EXPECT_TRUE(names.insert(fact.name).second) << fact.name << " twice";
    EXPECT_FALSE(fact.effect.empty()) << fact.name;
    const auto at = examples.find(fact.name);
    ASSERT_NE(at, examples.end()) << fact.name << " has no example";
    const auto& [operation, value] = at->second;
    const std::string without = Everything(json::object(), operation),
                      with = Everything({{fact.name, value}}, operation);
    EXPECT_NE(with, without) << fact.name << " has no effect";
    EXPECT_EQ(with.find("not supported in this version (") != with.npos, fact.use == FactUse::kUnsupported) << with;
    EXPECT_THAT(Refusal({{std::string(fact.name) + "x", value}}), HasSubstr("wanted a known key"));
  }
  EXPECT_EQ(names.size(), examples.size());
}

TEST(Facts, WhatIsNotSupportedMayBeDeclaredAsAbsent) {
  for (const Fact& fact : kFacts) {
    if (fact.use != FactUse::kUnsupported) continue;
    for (const json& empty : {json(), json(false), json(0), json(""), json::array(), json::object()}) {
      EXPECT_EQ(Refusal({{fact.name, empty}}), "accepted") << fact.name << " " << empty;
    }
    for (const json& value : {json(true), json(1), json("a"), json{"a"}, json{{"a", 1}}}) {
      EXPECT_THAT(Refusal({{fact.name, value}}), HasSubstr(std::string(fact.name) + ": wanted no value")) << value;
    }
  }
}

TEST(Facts, TheSchemaHasTheSameNames) {
  std::ifstream file(LZ_SOURCE_DIR "/schemas/capabilities.schema.json");
  const json schema = json::parse(file);
  std::set<std::string> published, known = {"extends"};
  for (const auto& [key, ignored] : schema["$defs"]["kernel"]["properties"].items()) published.insert(key);
  for (const Fact& fact : kFacts) known.emplace(fact.name);
  EXPECT_EQ(published, known);
}

TEST(Facts, LayoutsAreRows) {
  EXPECT_EQ(Rows({{"requires_layouts", {"BSHD"}}}, kDense), V{"layout == 0 LAYOUT_UNSUPPORTED"});
  EXPECT_EQ(Rows({{"requires_layouts", {"BHSD"}}, {"produces_layout", "BHSD"}}, kDense),
            V{"layout == 1 LAYOUT_UNSUPPORTED"});
  EXPECT_EQ(Rows({{"requires_layouts", {"BHSD", "BSHD"}}}, kDense), V{});
  EXPECT_EQ(Rows({{"requires_layouts", {"HND", "BSHD"}}}, "kv.gather"), V{"layout == 1 LAYOUT_UNSUPPORTED"});
  EXPECT_THAT(Refusal({{"requires_layouts", {"NHD"}}}, kDense), HasSubstr("some of BSHD, BHSD"));
  EXPECT_THAT(Refusal({{"requires_layouts", {"SBHD"}}}, kDense), HasSubstr("wanted any, BSHD, BHSD, NHD or HND"));
  EXPECT_THAT(Refusal({{"requires_layouts", {"any", "BSHD"}}}, kDense), HasSubstr("[\"any\"] alone"));
  EXPECT_THAT(Refusal({{"requires_layouts", {"BSHD"}}}), HasSubstr("[\"any\"]: norm.rms has one layout"));
  EXPECT_THAT(Refusal({{"requires_layouts", {"BSHD", "BHSD"}}, {"produces_layout", "BSHD"}}, kDense),
              HasSubstr("produces_layout: wanted the one layout of requires_layouts"));
  EXPECT_THAT(Refusal({{"requires_layouts", {"BSHD"}}, {"produces_layout", "BHSD"}}, kDense),
              HasSubstr("produces_layout"));
}

TEST(Facts, TensorParallelPromises) {
  const auto refusal = [](json tp) { return Refusal({{"tp_invariance", std::move(tp)}}); };
  EXPECT_EQ(refusal({{"is_tp_invariant", true}, {"reduction_order", "tree"}, {"uses_tbik", true}, {"max_tp_size", 8}}),
            "accepted");
  EXPECT_EQ(refusal({{"reduction_order", "arbitrary"}, {"max_tp_size", nullptr}}), "accepted");
  EXPECT_THAT(refusal({{"reduction_order", "any"}}), HasSubstr("wanted arbitrary, canonical, tree or ring"));
  EXPECT_THAT(refusal({{"max_tp_size", 0}}), HasSubstr("wanted a whole number from 1 to 65536"));
  EXPECT_THAT(refusal({{"is_tp_invariant", 1}}), HasSubstr("wanted true or false"));
  EXPECT_THAT(refusal({{"uses_tbik", true}}), HasSubstr("next to uses_tbik: true"));
  EXPECT_THAT(refusal({{"size", 1}}), HasSubstr("is_tp_invariant, reduction_order, uses_tbik or max_tp_size"));
  EXPECT_EQ(Rows({{"supports_kv_strategies", {"contiguous"}}}),
            V{"policy.kv_cache.strategy in 3 KV_STRATEGY_UNSUPPORTED"});
  EXPECT_THAT(Refusal({{"supports_kv_strategies", {"virtual"}}}), HasSubstr("some of contiguous, paged"));
}

TEST(Facts, RowsMayCompareWithFacts) {
  const auto row = [](json fact) {
    return json{{"constraints", {{{"field", "hidden"}, {"relation", "<="}, {"fact", std::move(fact)}}}}};
  };
  EXPECT_EQ(Refusal(row("device.l2_bytes")), "accepted");
  EXPECT_THAT(Refusal(row(3)), HasSubstr("`fact` alone"));
  json both = row("device.l2_bytes");
  both["constraints"][0]["operand"] = 3;
  EXPECT_THAT(Refusal(both), HasSubstr("`fact` alone"));
}

TEST(Facts, MasksByTheirKind) {
  const std::string floats = std::to_string(Mask(DType::kF64, DType::kF32, DType::kF16, DType::kBF16));
  const auto rows = [](json types) { return Rows({{"supported_attn_mask_types", std::move(types)}}, kDense); };
  EXPECT_EQ(rows({"none", "bool"}),
            V{"attn_mask.dtype in " + std::to_string(1 + Mask(DType::kBool)) + " ATTN_MASK_UNSUPPORTED"});
  EXPECT_EQ(rows({"float"}), V{"attn_mask.dtype in " + floats + " ATTN_MASK_UNSUPPORTED"});
  EXPECT_EQ(rows({"none"}), V{});
  EXPECT_THAT(Accepted({{"supported_attn_mask_types", {"bool"}}}, kDense), testing::Contains("attn_mask"));
  EXPECT_THAT(Accepted({{"supported_attn_mask_types", {"none"}}}, kDense),
              testing::Not(testing::Contains("attn_mask")));
  EXPECT_THAT(Refusal({{"supported_attn_mask_types", {"bool"}}, {"supports_attn_mask", false}}, kDense),
              HasSubstr("what supports_attn_mask says"));
  EXPECT_THAT(Refusal({{"supported_attn_mask_types", {"int"}}}, kDense), HasSubstr("some of none, bool, float"));
  EXPECT_THAT(Refusal({{"supported_attn_mask_types", {"bool"}}}), HasSubstr("no such key in norm.rms"));
}

TEST(Facts, QuantisedFormatsScalesAndPackedWeights) {
  const char* const linear = "mlp.linear.quantized";
  EXPECT_EQ(Rows({{"supported_quant_dtypes", {"nvfp4", "int8"}}}, linear), V{"format in 0 9 QUANT_FORMAT_UNSUPPORTED"});
  EXPECT_EQ(Rows({{"supports_int8", true}, {"supports_fp8", true}}, linear),
            V{"format in 0 4 5 QUANT_FORMAT_UNSUPPORTED"});
  EXPECT_EQ(Rows({{"supported_quant_dtypes", {"int4"}}}, "quantize.asymmetric"),
            V{"format in 2 QUANT_FORMAT_UNSUPPORTED"});
  EXPECT_EQ(Rows({{"supported_quant_dtypes", {"q8_0"}}}, "dequantize.gguf"), V{"format in 4 QUANT_FORMAT_UNSUPPORTED"});
  EXPECT_THAT(Refusal({{"supported_quant_dtypes", {"int3"}}}, linear), HasSubstr("some of int8|uint8"));
  EXPECT_THAT(Refusal({{"supported_quant_dtypes", {"int8"}}}), HasSubstr("no such key in norm.rms"));
  EXPECT_THAT(Refusal({{"supported_quant_dtypes", {"int8"}}, {"supports_int8", false}}, linear),
              HasSubstr("supports_int8: wanted true"));
  EXPECT_THAT(Refusal({{"supports_mxfp4", true}}), HasSubstr("no such key in norm.rms"));
  EXPECT_EQ(Rows({{"quantization_requires_scales", true}}, "quantize"), V{"scale.given == 1 QUANT_SCALES_REQUIRED"});
  EXPECT_EQ(Rows({{"quantization_requires_scales", true}}, kPaged),
            (V{"k_scale.given == 1 QUANT_SCALES_REQUIRED", "v_scale.given == 1 QUANT_SCALES_REQUIRED"}));
  EXPECT_THAT(Refusal({{"quantization_requires_scales", true}}), HasSubstr("no such key in norm.rms"));
  EXPECT_EQ(Rows({{"quantization_scale_granularity", "per_tensor"}}, "quantize"),
            V{"scale.one_element == 1 QUANT_GRANULARITY"});
  EXPECT_EQ(Rows({{"quantization_scale_granularity", "per_head"}}, kPaged), V{});
  EXPECT_THAT(Refusal({{"quantization_scale_granularity", "blockwise"}}, linear),
              HasSubstr("others are not supported in this version"));
  EXPECT_THAT(Accepted({{"quantization_zero_point", true}}, linear), testing::Contains("zero_point"));
  EXPECT_THAT(Refusal({{"quantization_zero_point", true}}, kPaged), HasSubstr("no such key"));
  EXPECT_EQ(Rows({{"requires_packed_weights", true}}, linear), V{"packed.given == 1 PACKED_WEIGHTS_REQUIRED"});
  EXPECT_THAT(Refusal({{"requires_packed_weights", true}}), HasSubstr("no such key in norm.rms"));
}

TEST(Facts, CachesOfKeysAndValues) {
  const std::string mask = std::to_string(Mask(DType::kI8, DType::kF8E4M3));
  EXPECT_EQ(Rows({{"supports_kv_cache_dtypes", {"int8", "float8_e4m3fn"}}}, kPaged),
            (V{"paged_k_cache.dtype in " + mask + " KV_CACHE_DTYPE_MISMATCH",
               "paged_v_cache.dtype in " + mask + " KV_CACHE_DTYPE_MISMATCH"}));
  EXPECT_THAT(Refusal({{"supports_kv_cache_dtypes", {"int8"}}}, kDense), HasSubstr("no such key"));
  EXPECT_THAT(Refusal({{"supports_kv_cache_dtypes", {"int7"}}}, kPaged), HasSubstr("dtypes by name"));
  EXPECT_EQ(Rows({{"supports_kv_cache_layouts", {"HND"}}}, "kv.append_paged"),
            V{"layout == 1 KV_CACHE_LAYOUT_MISMATCH"});
  EXPECT_EQ(Rows({{"supports_kv_cache_layouts", {"NHD", "HND"}}}, kPaged), V{});
  EXPECT_THAT(Refusal({{"supports_kv_cache_layouts", {"HND"}}}, kPaged), HasSubstr("NHD among them"));
}

TEST(Facts, DtypesByEitherNameAndByFlags) {
  EXPECT_EQ(Dtypes({{"supported_dtypes", {"float16", "float32"}}, {"requires_dtype", "float16"}}), Mask(DType::kF16));
  EXPECT_EQ(Dtypes({{"supports_bfloat16", true}}), Mask(DType::kF32, DType::kBF16));
  EXPECT_EQ(Dtypes({{"supports_int8", true}}, "elementwise.cast"), Mask(DType::kF32, DType::kI8));
  EXPECT_THAT(Refusal({{"dtypes", {"bfloat16"}}, {"supports_bfloat16", false}}),
              HasSubstr("supports_bfloat16: wanted true"));
  EXPECT_THAT(Refusal({{"requires_dtype", "float16"}}), HasSubstr("requires_dtype: wanted one of dtypes"));
  const json both = {{"schema_version", "1.0"},
                     {"backend", "x"},
                     {"backend_version", "1"},
                     {"platform", "any"},
                     {"ops",
                      {{"norm.rms",
                        {{{"kernel_id", "x.y"},
                          {"dtypes", {"float32"}},
                          {"supported_dtypes", {"float32"}},
                          {"requires_layouts", {"any"}}}}}}}};
  EXPECT_THAT(ParseDescriptor(both.dump(), "x.json", Operations()).status().Text(),
              HasSubstr("one of dtypes and supported_dtypes"));
}

}  // namespace
}  // namespace lz
