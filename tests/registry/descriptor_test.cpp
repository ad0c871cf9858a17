// Descriptors: every shipped one parses, each fact becomes its row, each mistake disables the backend and says where.
#include "registry/descriptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "platform/device.h"
#include "registry/descriptor_internal.h"
#include "registry/field_alias.h"
#include "registry/registry.h"
#include "test_paths.h"

namespace lz {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// The descriptor of 001 Appendix D, without what this version does not support: "fuses_ops": ["posenc.rope"].
json Example() {
  return json::parse(R"({
    "schema_version": "1.0", "backend": "flash_attn", "backend_version": "2.5.6", "platform": "cuda",
    "ops": {"attention.causal": [{
      "kernel_id": "flash_attn.v2.causal", "min_sm": 80, "max_sm": null, "dtypes": ["float16", "bfloat16"],
      "min_head_dim": 32, "max_head_dim": 256, "head_dim_multiple": 8, "max_seq_len": null, "supports_gqa": true,
      "supports_attn_mask": false, "supports_dropout": false, "requires_layouts": ["BSHD"],
      "produces_layout": "BSHD", "requires_last_dim_stride1": true, "is_cuda_graph_safe": true,
      "deterministic": false, "fuses_ops": [], "transform_cost_hint": 0}]}})");
}
json Minimal(json kernel = json::object(), const std::string& operation = "norm.rms") {
  json row = {{"kernel_id", "x.y"}, {"dtypes", {"float32"}}, {"requires_layouts", {"any"}}};
  row.update(kernel);
  return {{"schema_version", "1.0"},
          {"backend", "x"},
          {"backend_version", "1"},
          {"platform", "cpu"},
          {"ops", {{operation, {row}}}}};
}
const Registry& Operations() {
  static const Registry registry;
  return registry;
}
std::string Refusal(const json& document) {
  auto descriptor = ParseDescriptor(document.dump(), "x.json", Operations());
  return descriptor.ok() ? "accepted" : descriptor.status().Text();
}
Descriptor Parsed(const json& document) {
  auto descriptor = ParseDescriptor(document.dump(), "x.json", Operations());
  EXPECT_TRUE(descriptor.ok()) << descriptor.status().Text();
  return descriptor.ok() ? std::move(*descriptor) : Descriptor();
}
std::string RowText(const Constraint& c) {
  std::string text = std::string(c.field) + " " + std::string(RelText(c.rel));
  if (c.rel == Rel::kInSet) {
    for (int64_t value : c.set) text += " " + std::to_string(value);
  } else {
    text += " " + (c.fact.empty() ? std::to_string(c.operand) : std::string(c.fact));
  }
  return text;
}
std::vector<std::string> Rows(const DescribedKernel& kernel) {
  std::vector<std::string> rows;
  for (const Constraint& c : kernel.spec.constraints) rows.push_back(RowText(c));
  return rows;
}
// The rows of one kernel object in one operation.
std::vector<std::string> RowsOf(json kernel, const std::string& operation = "norm.rms") {
  const Descriptor d = Parsed(Minimal(std::move(kernel), operation));
  return d.kernels.empty() ? std::vector<std::string>{"refused"} : Rows(d.kernels[0]);
}

TEST(Descriptor, ReadsTheSpecificationsExample) {
  const Descriptor d = Parsed(Example());
  EXPECT_EQ(d.backend, "flash_attn");
  EXPECT_EQ(d.platform, Platform::kCuda);
  std::vector<std::string_view> operations;
  for (const DescribedKernel& k : d.kernels) operations.push_back(k.spec.operation);
  EXPECT_THAT(operations, ElementsAre("attention.standard.prefill", "attention.gqa.prefill",
                                      "attention.standard.decode", "attention.gqa.decode"));
  const DescribedKernel& k = d.kernels[0];
  EXPECT_EQ(k.spec.id, "flash_attn.v2.causal");
  EXPECT_EQ(k.spec.source, "flash_attn");
  EXPECT_EQ(k.spec.call, CallKind::kHost);
  EXPECT_EQ(k.spec.dtypes, Mask(DType::kF16, DType::kBF16));
  EXPECT_EQ(k.spec.strides, Strides::kLastDimDense);
  EXPECT_TRUE(k.spec.cuda_graph_safe);
  EXPECT_FALSE(k.spec.deterministic);
  EXPECT_FALSE(k.spec.requires_grad);
  EXPECT_THAT(Rows(k), ElementsAre("layout == 0", "device.sm >= 80", "d_qk >= 32", "d_qk <= 256", "d_qk multiple of 8",
                                   "d_v >= 32", "d_v <= 256", "d_v multiple of 8", "causal == 1"));
  EXPECT_THAT(k.spec.accepts, ElementsAre("scale", "sm_scale", "causal"));
  json fused = Example();
  fused["ops"]["attention.causal"][0]["fuses_ops"] = {"posenc.rope"};
  EXPECT_THAT(Refusal(fused), HasSubstr("fuses_ops: wanted no value: it is not supported in this version"));
}

TEST(Descriptor, HashIsSha256OfTheText) {
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string text = Example().dump();
  auto one = ParseDescriptor(text, "x", Operations()), other = ParseDescriptor(text + " ", "x", Operations());
  EXPECT_EQ(one->hash, Sha256Hex(text));
  EXPECT_NE(one->hash, other->hash);
}

TEST(Descriptor, ViewsSurviveAMove) {
  Descriptor first = Parsed(Example());
  const Descriptor second = std::move(first);
  EXPECT_EQ(second.kernels[3].spec.operation, "attention.gqa.decode");
  EXPECT_THAT(Rows(second.kernels[3]), Contains("d_v multiple of 8"));
}

TEST(Descriptor, EachFactBecomesItsRow) {
  using V = std::vector<std::string>;
  const char* const prefill = "attention.standard.prefill";
  const json attention = {{"max_head_dim", nullptr}, {"supports_gqa", true}};
  const auto with = [&](json more) {
    json kernel = attention;
    kernel.update(more);
    return kernel;
  };
  EXPECT_EQ(RowsOf({{"min_sm", {8, 6}}}), V{"device.sm >= 86"});
  EXPECT_EQ(RowsOf({{"max_sm", 89}}), V{"device.sm <= 89"});
  EXPECT_EQ(RowsOf({{"supported_generations", {"ampere", "ada"}}}), V{"device.generation in 24"});
  EXPECT_EQ(RowsOf({{"requires_tensor_core_gen", 4}}), V{"device.tensor_core_generation >= 4"});
  EXPECT_EQ(RowsOf({{"instruction_set", "tcgen05.mma"}}), V{"device.instruction_sets has 8"});
  EXPECT_EQ(RowsOf({{"cpu_isa", {"avx2", "avx512"}}}), V{"device.isa has 6"});
  EXPECT_EQ(RowsOf({{"min_driver_version", "520.0"}}), V{"device.driver_version >= 520000"});
  EXPECT_EQ(RowsOf({{"min_cuda_version", "12.3"}}), V{"device.cuda_version >= 12003"});
  EXPECT_EQ(RowsOf({{"requires_aligned", {{"input", 16}}}}), V{"input.alignment >= 4"});
  EXPECT_EQ(RowsOf({{"masked_v_nan", "propagates"}}), V{"policy.strict_mode == 0"});
  EXPECT_EQ(RowsOf({{"masked_v_nan", "clean"}}), V{});
  EXPECT_EQ(RowsOf(attention, prefill), V{});
  EXPECT_EQ(RowsOf(with({{"max_seq_len", 4096}}), prefill), (V{"s_q <= 4096", "s_kv <= 4096"}));
  EXPECT_EQ(RowsOf(with({{"max_seq_len", 64}}), "attention.standard.prefill.ragged"),
            (V{"max_seqlen_q <= 64", "max_seqlen_kv <= 64"}));
  EXPECT_EQ(RowsOf(with({{"head_dims", {64, 128}}}), prefill), (V{"d_qk in 64 128", "d_v in 64 128"}));
  EXPECT_EQ(RowsOf(with({{"equal_head_dims", true}}), prefill), V{"d_qk - d_v == 0"});
  EXPECT_EQ(RowsOf(with({{"supports_gqa", false}}), prefill), V{"group == 1"});
  EXPECT_EQ(RowsOf(with({{"gqa_groups", {1, 2}}}), "attention.gqa.prefill"), V{"group in 1 2"});
  const auto constrained = [](json row) { return RowsOf({{"constraints", {row}}}); };
  EXPECT_EQ(constrained({{"field", "hidden"}, {"relation", "multiple of"}, {"operand", 8}}), V{"hidden multiple of 8"});
  EXPECT_EQ(constrained({{"field", "weight.given"}, {"relation", "=="}, {"operand", true}}), V{"weight.given == 1"});
  EXPECT_EQ(constrained({{"field", "weight.dtype"}, {"relation", "in"}, {"set", {"float32"}}}),
            V{"weight.dtype in " + std::to_string(1 + Mask(DType::kF32))});
  EXPECT_EQ(RowsOf(with({{"constraints", {{{"field", "head_dim"}, {"relation", "<="}, {"operand", 64}}}}}), prefill),
            (V{"d_qk <= 64", "d_v <= 64"}));
  EXPECT_EQ(constrained({{"field", "device.isa"}, {"relation", "has"}, {"operand", "avx2"}}), V{"device.isa has 2"});
}

TEST(Descriptor, ChoicesGoByTheContractsNames) {
  using V = std::vector<std::string>;
  const auto rows = [](json row) { return RowsOf({{"constraints", {row}}}, "activation.pointwise"); };
  EXPECT_EQ(rows({{"field", "function"}, {"relation", "=="}, {"operand", "gelu"}}), V{"function == 1"});
  EXPECT_EQ(rows({{"field", "function"}, {"relation", "!="}, {"operand", "silu"}}), V{"function != 0"});
  EXPECT_EQ(rows({{"field", "function"}, {"relation", "in"}, {"set", {"silu", "relu", "identity"}}}),
            V{"function in 0 3 8"});
  const auto refusal = [](json operand) {
    const json row = {{"field", "function"}, {"relation", "=="}, {"operand", std::move(operand)}};
    return Refusal(Minimal({{"constraints", {row}}}, "activation.pointwise"));
  };
  for (const json& wrong : {json("swish"), json(1), json(true)}) {
    EXPECT_THAT(refusal(wrong), HasSubstr("constraints[0].operand: wanted one of silu|gelu|gelu_tanh")) << wrong;
  }
}

// What an operation can be asked is in its contract: axes, lengths, groups of heads.
TEST(Descriptor, KeysFollowTheOperationsAxes) {
  using V = std::vector<std::string>;
  const json any = {{"max_head_dim", nullptr}};
  const auto with = [&](json more) {
    json kernel = any;
    kernel.update(more);
    return kernel;
  };
  EXPECT_EQ(RowsOf(any, "attention.sparse.block"), V{"group == 1"});
  EXPECT_EQ(RowsOf(with({{"supports_gqa", true}}), "attention.sparse.block"), V{});
  EXPECT_EQ(RowsOf(with({{"supports_gqa", true}, {"gqa_groups", {1, 4}}}), "attention.cross.prefill"),
            V{"group in 1 4"});
  EXPECT_EQ(RowsOf(with({{"supports_gqa", true}, {"max_seq_len", 9}}), "attention.standard.partials"),
            (V{"s_q <= 9", "s_kv <= 9"}));
  EXPECT_EQ(RowsOf({{"max_seq_len", 9}}, "attention.mla.prefill"), (V{"s_q <= 9", "s_kv <= 9"}));
  EXPECT_EQ(RowsOf(json::object(), "attention.merge"), V{});
  EXPECT_EQ(RowsOf(json::object(), "mlp.linear.quantized"), V{});  // its `group` is no group of heads
  for (const char* operation : {"attention.mla.prefill", "attention.mla.decode", "attention.merge", "norm.rms"}) {
    EXPECT_THAT(Refusal(Minimal(any, operation)), HasSubstr("[0].max_head_dim: wanted no such key")) << operation;
  }
  for (const char* operation : {"attention.cross.prefill.paged", "attention.standard.decode.pod", "attention.merge"}) {
    EXPECT_THAT(Refusal(Minimal({{"max_seq_len", 9}}, operation)), HasSubstr("[0].max_seq_len: wanted null"))
        << operation;
  }
}

TEST(Descriptor, RowsCarryTheirReasonCodes) {
  const Descriptor d = Parsed(
      Minimal({{"min_sm", 80},
               {"max_sm", 89},
               {"max_head_dim", 256},
               {"head_dim_multiple", 8},
               {"min_head_dim", 16},
               {"max_seq_len", 100},
               {"constraints",
                {{{"field", "window.given"}, {"relation", "=="}, {"operand", false}, {"code", "CONSTRAINT_FAILED"}}}}},
              "attention.standard.prefill"));
  std::set<ReasonCode> codes;
  for (const Constraint& c : d.kernels.at(0).spec.constraints) codes.insert(c.code);
  EXPECT_THAT(codes,
              UnorderedElementsAre(ReasonCode::kSmTooOld, ReasonCode::kSmTooNew, ReasonCode::kHeadDimTooLarge,
                                   ReasonCode::kHeadDimAlignment, ReasonCode::kHeadDimInvalid, ReasonCode::kSeqTooLong,
                                   ReasonCode::kGqaUnsupported, ReasonCode::kConstraintFailed));
}

TEST(Descriptor, WhatIsNotDeclaredIsUnsupported) {
  const Descriptor d = Parsed(Minimal(json::object(), "attention.standard.prefill"));
  const DescribedKernel& k = d.kernels.at(0);
  EXPECT_EQ(d.kernels.size(), 1u);
  EXPECT_EQ(k.spec.strides, Strides::kContiguous);
  EXPECT_FALSE(k.spec.cuda_graph_safe);
  EXPECT_FALSE(k.spec.deterministic);
  EXPECT_FALSE(k.spec.requires_grad);
  EXPECT_THAT(k.spec.accepts, ElementsAre("scale", "sm_scale"));
  EXPECT_THAT(Rows(k), ElementsAre("d_qk < 0", "d_v < 0", "group == 1"));
  json cuda = Minimal();
  cuda["platform"] = "cuda";
  EXPECT_THAT(Rows(Parsed(cuda).kernels.at(0)), ElementsAre("device.sm <= 0"));
  cuda["ops"]["norm.rms"][0]["min_sm"] = nullptr;
  EXPECT_THAT(Rows(Parsed(cuda).kernels.at(0)), IsEmpty());
}

TEST(Descriptor, StridesFollowFromTwoFacts) {
  const auto strides = [](json kernel) { return Parsed(Minimal(std::move(kernel))).kernels.at(0).spec.strides; };
  EXPECT_EQ(strides({{"requires_contiguous", true}, {"requires_last_dim_stride1", true}}), Strides::kContiguous);
  EXPECT_EQ(strides({{"requires_last_dim_stride1", true}}), Strides::kLastDimDense);
  EXPECT_EQ(strides({{"requires_contiguous", false}, {"requires_last_dim_stride1", true}}), Strides::kLastDimDense);
  EXPECT_EQ(strides({{"requires_contiguous", false}, {"requires_last_dim_stride1", false}}), Strides::kAny);
  EXPECT_EQ(strides({{"requires_last_dim_stride1", false}}), Strides::kAny);
  // Half a statement allows what it says and no more.
  EXPECT_EQ(strides({{"requires_contiguous", false}}), Strides::kLastDimDense);
}

TEST(Descriptor, GridFormulasBecomeRowsAgainstLaunchLimits) {
  const Descriptor d = Parsed(
      Minimal({{"max_head_dim", nullptr},
               {"supports_gqa", true},
               {"grid_layout",
                {{"x", "seq_tiles"}, {"y", "batch"}, {"z", "heads"}, {"tiles_sequence", true}, {"tile_size", 64}}}},
              "attention.standard.prefill"));
  const auto& rows = d.kernels.at(0).spec.constraints;
  ASSERT_EQ(rows.size(), 3u);  // along x no tensor reaches the limit
  EXPECT_EQ(RowText(rows[0]), "b <= device.max_grid_y");
  EXPECT_EQ(RowText(rows[1]), "h_q <= device.max_grid_z");
  EXPECT_EQ(rows[0].code, ReasonCode::kCudaGridDimExceeded);
  EXPECT_EQ(rows[2].field, "b * h_q * 1 * ((s_q + 63) / 64)");
  EXPECT_EQ(rows[2].fact, "device.max_grid_blocks");
  EXPECT_EQ(rows[2].code, ReasonCode::kCudaBlockLimitExceeded);
  const auto grid = [](json layout) {
    return RowsOf({{"max_head_dim", nullptr}, {"supports_gqa", true}, {"grid_layout", std::move(layout)}},
                  "attention.standard.prefill");
  };
  EXPECT_THAT(grid({{"x", "batch * heads"}, {"y", "seq_tiles"}, {"tile_size", 64}}),
              ElementsAre("b * h_q <= device.max_grid_x", "((s_q + 63) / 64) <= device.max_grid_y",
                          "b * h_q * 1 <= device.max_grid_x"));
  EXPECT_THAT(grid({{"x", "batch * kv_heads * seq_tiles"}, {"blocks_per_batch_head", 2}}),
              ElementsAre("b * h_kv * ((s_q + 127) / 128) <= device.max_grid_x", "b * h_q * 2 <= device.max_grid_x"));
}

TEST(Descriptor, AliasesAndGroupedOperations) {
  const json kernel = {{"max_head_dim", nullptr}, {"supports_gqa", true}, {"also_operations", {"attention.paged"}}};
  const Descriptor d = Parsed(Minimal(kernel, "attention.full"));
  std::set<std::string> operations;
  for (const DescribedKernel& k : d.kernels) operations.emplace(k.spec.operation);
  EXPECT_THAT(operations, UnorderedElementsAre("attention.standard.prefill", "attention.standard.decode",
                                               "attention.gqa.prefill", "attention.gqa.decode",
                                               "attention.standard.decode.paged", "attention.gqa.decode.paged"));
  EXPECT_THAT(Rows(d.kernels[0]), ElementsAre("causal == 0"));
  EXPECT_THAT(d.kernels[0].spec.accepts, Not(Contains("causal")));
}

TEST(Descriptor, EveryGroupedOperationIsFoundInItsContract) {
  const auto grouped = [](std::string_view id) { return GroupedVariantOf(Operations().Find(id)->contract(), id); };
  EXPECT_EQ(grouped("attention.standard.prefill"), "attention.gqa.prefill");
  EXPECT_EQ(grouped("attention.standard.decode"), "attention.gqa.decode");
  EXPECT_EQ(grouped("attention.gqa.decode"), "");
  EXPECT_EQ(grouped("attention.cross.decode"), "");
  EXPECT_EQ(grouped("norm.rms"), "");
  for (const auto& op : Operations().operations()) {
    for (const Variant& v : op->contract().variants) {
      if (!v.id.starts_with("attention.standard.")) continue;
      EXPECT_EQ(grouped(v.id), "attention.gqa." + std::string(v.id.substr(19))) << v.id;
    }
  }
}

TEST(Descriptor, TemplatesRequirementsAndNotes) {
  json document = Minimal({{"extends", "t"}, {"priority", 7}, {"notes", {"a"}}, {"requires", {{{"import", "own"}}}}});
  document["templates"] = {{"t", {{"priority", 80}, {"adapter", "m:f"}, {"deterministic", true}}}};
  document["requires"] = {
      {{"import", "lib"}, {"distribution", "lib-dist"}, {"min_version", "2.0"}, {"install", "make lib"}}};
  const Descriptor d = Parsed(document);
  const DescribedKernel& k = d.kernels.at(0);
  EXPECT_EQ(k.spec.priority, 7);
  EXPECT_EQ(k.adapter, "m:f");
  EXPECT_TRUE(k.spec.deterministic);
  ASSERT_EQ(k.requirements.size(), 2u);
  EXPECT_EQ(k.requirements[0]->import_name, "own");
  EXPECT_EQ(k.requirements[1]->distribution, "lib-dist");
  EXPECT_THAT(k.notes, ElementsAre("a"));
  EXPECT_EQ(d.requirements.at(0).min_version, "2.0");
  EXPECT_EQ(d.requirements.at(0).install, "make lib");
}

TEST(Descriptor, RefusesAndSaysWhere) {
  struct Case {
    json document;
    std::string place;
  };
  const auto head = [](const char* key, json value) {
    json d = Minimal();
    d[key] = std::move(value);
    return d;
  };
  const auto without = [](const char* key) {
    json d = Minimal();
    d.erase(key);
    return d;
  };
  const auto row = [](json kernel, const char* operation = "norm.rms") {
    return Minimal(std::move(kernel), operation);
  };
  const auto rule = [](json constraint) { return Minimal({{"constraints", {constraint}}}); };
  const auto preferences = [](json preference) { return Minimal({{"preferences", {preference}}}); };
  const json few = {{"field", "rows"}, {"relation", "<="}, {"operand", 4}};
  json coded = few;
  coded["code"] = "SHAPE_UNSUPPORTED";
  const char* const prefill = "attention.standard.prefill";
  json twice = Minimal();
  twice["ops"]["norm.rms"].push_back(twice["ops"]["norm.rms"][0]);
  const std::vector<Case> cases = {
      {head("schema_version", "2.0"), "x.json: schema_version"},
      {without("schema_version"), "x.json: schema_version"},
      {without("backend"), "x.json: backend"},
      {without("backend_version"), "x.json: backend_version"},
      {without("platform"), "x.json: platform"},
      {without("ops"), "x.json: ops"},
      {head("platform", "tpu"), "x.json: platform"},
      {head("speed", 1), "x.json: speed"},
      {head("ops", json::object()), "x.json: ops"},
      {head("ops", {{"norm.rms", 1}}), "x.json: ops.norm.rms"},
      {head("requires", {{{"import", "x"}, {"min_version", "1"}}}), "requires[0].distribution"},
      {head("requires", {{{"module", "x"}}}), "requires[0].module"},
      {twice, "ops.norm.rms[1].kernel_id"},
      {row({{"speed", 1}}), "ops.norm.rms[0].speed"},
      {row({{"dtypes", json::array()}}), "ops.norm.rms[0].dtypes"},
      {row({{"dtypes", nullptr}}), "ops.norm.rms[0].dtypes"},
      {row({{"dtypes", {"float33"}}}), "ops.norm.rms[0].dtypes"},
      {row({{"requires_layouts", json::array()}}), "ops.norm.rms[0].requires_layouts"},
      {row({{"accepts", {""}}}), "ops.norm.rms[0].accepts: wanted a list of names"},
      {row({{"kernel_id", "nodots"}}), "ops.norm.rms[0].kernel_id"},
      {row({{"kernel_id", 3}}), "ops.norm.rms[0].kernel_id"},
      {row({{"min_sm", "80"}}), "[0].min_sm"},
      {row({{"min_sm", {8, 0, 1}}}), "[0].min_sm"},
      {row({{"min_sm", 90}, {"max_sm", 80}}), "[0].max_sm"},
      {row({{"priority", 101}}), "[0].priority"},
      {row({{"priority", 1.5}}), "[0].priority"},
      {row({{"preferences", 5}}), "[0].preferences: wanted a list"},
      {preferences({{"when", {few}}}), "[0].preferences[0].priority: wanted a whole number from 0 to 100"},
      {preferences({{"when", {few}}, {"priority", 101}}), "[0].preferences[0].priority"},
      {preferences({{"when", {few}}, {"priority", true}}), "[0].preferences[0].priority"},
      {preferences({{"when", json::array()}, {"priority", 5}}), "[0].preferences[0].when: wanted a list of rows"},
      {preferences({{"priority", 5}}), "[0].preferences[0].when"},
      {preferences({{"when", {few}}, {"priority", 5}, {"score", 1}}), "[0].preferences[0].score"},
      {preferences({{"when", {coded}}, {"priority", 5}}), "[0].preferences[0].when[0].code"},
      {row({{"deterministic", "yes"}}), "[0].deterministic"},
      {row({{"supported_generations", {"fermi"}}}), "[0].supported_generations"},
      {row({{"instruction_set", "x87"}}), "[0].instruction_set"},
      {row({{"cpu_isa", {"mmx"}}}), "[0].cpu_isa"},
      {row({{"min_driver_version", "new"}}), "[0].min_driver_version"},
      {row({{"max_head_dim", 256}}), "[0].max_head_dim"},
      {row({{"supports_attn_mask", true}}), "[0].supports_attn_mask"},
      {row({{"masked_v_nan", "maybe"}}), "[0].masked_v_nan"},
      {row({{"requires_aligned", {{"input", 12}}}}), "[0].requires_aligned.input"},
      {row({{"workspace_bytes", -1}}), "[0].workspace_bytes"},
      {row({{"workspace_bytes", "hidden *"}}), "[0].workspace_bytes"},
      {row({{"workspace_bytes", "heads"}}), "[0].workspace_bytes: wanted an expression of the axes of norm.rms"},
      {head("plugin_origin", "moon"), "x.json: plugin_origin"},
      {row({{"tokenizer_ids", "a"}}), "[0].tokenizer_ids"},
      {row({{"extends", "none"}}), "[0].extends"},
      {row({{"requires", {{{"distribution", "d"}}}}}), "[0].requires[0].import"},
      {row({{"head_dims", {-1}}}, prefill), "[0].head_dims"},
      {row({{"max_seq_len", 0}}, prefill), "[0].max_seq_len"},
      {row({{"max_seq_len", 5}}, "attention.standard.decode.paged"), "[0].max_seq_len"},
      {row({{"supports_gqa", false}}, "attention.gqa.prefill"), "[0].supports_gqa"},
      {row({{"gqa_groups", {1}}}, prefill), "[0].gqa_groups"},
      {row({{"grid_layout", {{"y", "batch"}}}}), "[0].grid_layout.x"},
      {row({{"grid_layout", {{"x", "batch"}, {"w", "heads"}}}}), "[0].grid_layout.w"},
      {row({{"grid_layout", {{"x", "batch"}, {"tile_size", 0}}}}), "[0].grid_layout"},
      {row({{"speed", 1}}, "norm.none"), "ops.norm.none[0]"},
      {row(json::object(), "norm.none"), "ops.norm.none[0]: wanted a known operation"},
      {row(json::object(), "rms_norm"), "ops.rms_norm[0]: wanted a known operation"},
      {row({{"also_operations", {"norm.none"}}}), "ops.norm.rms[0]: wanted a known operation"},
      {rule({{"relation", "=="}, {"operand", 1}}), "constraints[0].field"},
      {rule({{"field", "head_dim"}, {"relation", "=="}, {"operand", 1}}), "constraints[0].field"},
      {rule({{"field", "hidden"}, {"relation", "~"}, {"operand", 1}}), "constraints[0].relation"},
      {rule({{"field", "hidden"}, {"relation", "=="}, {"set", {1}}}), "constraints[0]"},
      {rule({{"field", "hidden"}, {"relation", "in"}, {"operand", 1}}), "constraints[0]"},
      {rule({{"field", "hidden"}, {"relation", "in"}, {"set", json::array()}}), "constraints[0].set"},
      {rule({{"field", "hidden"}, {"relation", "=="}, {"operand", "large"}}), "constraints[0].operand"},
      {rule({{"field", "weight.dtype"}, {"relation", "=="}, {"operand", "float33"}}), "constraints[0].operand"},
      {rule({{"field", "hidden"}, {"relation", "multiple of"}, {"operand", 0}}), "constraints[0].operand"},
      {rule({{"field", "hidden"}, {"relation", "=="}, {"operand", 1}, {"code", "NO_SUCH_CODE"}}),
       "constraints[0].code"},
      {rule({{"field", "hidden"}, {"relation", "=="}, {"operand", 1}, {"because", "x"}}), "constraints[0].because"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Refusal(c.document), HasSubstr(c.place)) << c.document;
    EXPECT_THAT(Refusal(c.document), HasSubstr("CAPABILITIES_SCHEMA_MISMATCH"));
  }
  EXPECT_EQ(kDescriptorRefusal, ReasonCode::kCapabilitiesSchemaMismatch);
}

TEST(Descriptor, RefusesTextThatIsNoBoundedJson) {
  const auto refusal = [](const std::string& text) {
    return ParseDescriptor(text, "x.json", Operations()).status().Text();
  };
  EXPECT_THAT(refusal("{\n\n,"), HasSubstr("x.json:3"));
  EXPECT_THAT(refusal("[]"), HasSubstr("an object"));
  EXPECT_THAT(refusal(std::string(1 << 21, ' ')), HasSubstr("bytes"));
  EXPECT_THAT(refusal("{\"ops\":" + std::string(50, '[')), HasSubstr("levels"));
}

// Every mutation of a valid descriptor is either accepted or refused with a place; nothing else happens.
TEST(Descriptor, SurvivesTruncationAndReplacedValues) {
  const std::string text = Example().dump();
  for (size_t n = 0; n < text.size(); ++n) {
    EXPECT_FALSE(ParseDescriptor(std::string_view(text).substr(0, n), "x", Operations()).ok());
  }
  const json values = {nullptr, true, -1, 1.5, "text", json::array({json::object()}), json::object()};
  const json example = Example();
  for (const auto& [key, unused] : example["ops"]["attention.causal"][0].items()) {
    for (const json& value : values) {
      json changed = example;
      changed["ops"]["attention.causal"][0][key] = value;
      auto descriptor = ParseDescriptor(changed.dump(), "x", Operations());
      if (!descriptor.ok()) {
        EXPECT_THAT(descriptor.status().parts().field, HasSubstr("attention.causal[0]." + key));
      }
    }
  }
}

TEST(Descriptor, EveryShippedDescriptorParses) {
  std::set<std::string> backends;
  const auto folder = std::filesystem::path(LZ_SOURCE_DIR) / "python/layerzero/backends";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto path = entry.path() / "capabilities.json";
    if (!std::filesystem::exists(path)) continue;
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    auto descriptor = ParseDescriptor(text.str(), entry.path().filename().string(), Operations());
    ASSERT_TRUE(descriptor.ok()) << descriptor.status().Text();
    EXPECT_EQ(descriptor->backend, entry.path().filename().string());
    backends.insert(descriptor->backend);
    for (const DescribedKernel& k : descriptor->kernels) {
      EXPECT_FALSE(k.requirements.empty()) << k.spec.id;
      EXPECT_THAT(std::string(k.adapter), HasSubstr(":")) << k.spec.id;
    }
  }
  EXPECT_THAT(backends, testing::IsSupersetOf({"torch", "zentorch"}));
}

TEST(FieldAlias, FieldsOfAlias) {
  EXPECT_THAT(FieldsOfAlias("head_dim"), ElementsAre("d_qk", "d_v"));
  EXPECT_THAT(FieldsOfAlias("sm"), ElementsAre("device.sm"));
  EXPECT_THAT(FieldsOfAlias("s_kv"), IsEmpty());
}

}  // namespace
}  // namespace lz
