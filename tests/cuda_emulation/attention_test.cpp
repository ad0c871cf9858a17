// How attention of few rows divides its keys among blocks, and that any division gives the same results.
#include <gtest/gtest.h>

#include "kernels/attention/splits_cuda.h"
#include "tests/cuda_emulation/device.h"
#include "tests/cuda_emulation/host_rows.h"

namespace lz {
namespace {
using attention::CudaProblem;

TEST(SharesOfKeys, EveryStepIsOfOneSplitAndNoneIsEmpty) {
  for (int32_t splits = 1; splits <= 33; ++splits) {
    for (int32_t steps = 0; steps <= 200; ++steps) {
      int32_t next = 0, least = steps, most = 0;
      for (int32_t i = 0; i < splits; ++i) {
        const attention::CudaShare share = attention::ShareOf(steps, splits, i);
        ASSERT_EQ(share.begin, next) << steps << " steps, split " << i << " of " << splits;
        ASSERT_GE(share.end, share.begin);
        least = std::min(least, share.end - share.begin), most = std::max(most, share.end - share.begin);
        next = share.end;
      }
      ASSERT_EQ(next, steps) << splits;
      ASSERT_LE(most - least, 1) << steps << " steps of " << splits;
    }
  }
}

CudaProblem Decode(int32_t b, int64_t keys, int32_t h_q, int32_t h_kv, int32_t d) {
  CudaProblem p = {.type = DType::kBF16, .cache = DType::kBF16};
  p.b = b, p.s_q = 1, p.s_kv = keys, p.d_qk = p.d_v = d;
  attention::SetHeads(&p, h_q, h_kv);
  return p;
}

int32_t Together(const CudaProblem& p) { return attention::SplitTogether(p).splits; }

TEST(SharesOfKeys, NoSplitIsWithoutKeysWhereShapesAreExact) {
  for (const int32_t d : {64, 80, 128, 256, 512}) {
    for (const int32_t b : {1, 3, 16, 64}) {
      for (int64_t keys = 1; keys < 40000; keys = keys * 5 / 4 + 1) {
        const CudaProblem p = Decode(b, keys, 32, 8, d);
        const int64_t in_turn = attention::SplitsOf(p, attention::CutOfTiles(p));
        const int64_t together = attention::SplitTogether(p).splits;
        EXPECT_LE(in_turn, std::max<int64_t>(1, keys / attention::SlimStep(p))) << keys << " keys of " << d;
        EXPECT_LE(together, std::max<int64_t>(1, keys / (attention::SlimStep(p) / 2))) << keys << " keys of " << d;
        EXPECT_LE(together, attention::kMostTogether);
      }
    }
  }
  EXPECT_EQ(Together(Decode(1, 1024, 32, 8, 64)), 8);
  EXPECT_EQ(Together(Decode(4, 1024, 32, 8, 64)), 2) << "32 clusters of 4 do not run at once";
  EXPECT_EQ(Together(Decode(8, 1024, 32, 8, 64)), 2);
  EXPECT_EQ(Together(Decode(16, 1024, 32, 8, 64)), 1) << "128 blocks without a split";
  EXPECT_EQ(Together(Decode(1, 256, 32, 8, 64)), 1) << "one step";
  EXPECT_EQ(Together(Decode(1, 131072, 32, 8, 64)), 1) << "more splits than a cluster has blocks";
  EXPECT_GT(attention::SplitsOf(Decode(1, 131072, 32, 8, 64), attention::CutOfTiles(Decode(1, 131072, 32, 8, 64))), 8);
}

void Check(const char* operation, const std::string& id, const std::string& call, bool in_clusters = true) {
  for (const bool clusters : {true, false}) {
    if (clusters && !in_clusters) continue;  // the kernel has none
    emulation::UseClusters(clusters);
    CheckOnce(operation, id, call, clusters ? "" : " without clusters");
  }
  emulation::UseClusters(true);
}

// Clusters are the device's, or parts in memory serve; lengths are shorter than the shapes, also 0.
TEST(SharesOfKeys, SplitsAgreeWithTheReference) {
  for (const std::string options :
       {"", " window=300", " softcap=5.0 return_lse=true", " sinks=f32[6] alibi_slopes=f32[6] return_lse=true"}) {
    for (const std::string shapes :
         {"64] key=bf16[2,1000,2,64] value=bf16[2,1000,2,64]", "128] key=bf16[2,300,2,128] value=bf16[2,300,2,128]",
          "256] key=bf16[2,140,2,256] value=bf16[2,140,2,256]"}) {
      Check("attention.gqa.decode", "cuda.attention.gqa.decode.mma", "query=bf16[2,1,6," + shapes + options);
    }
  }
  for (const std::string tokens : {"1", "3"}) {
    Check("attention.mla.decode", "cuda.attention.mla.decode",
          "q_nope=bf16[" + tokens + ",40,64] q_pe=bf16[" + tokens +
              ",40,16] ckv=bf16[1200,1,64] kpe=bf16[1200,1,16] sm_scale=0.1 return_lse=true");
  }
  for (const std::string lengths : {"{700,1}", "{0,129}", "{3,512}"}) {
    Check("attention.gqa.decode.block_table", "cuda.attention.gqa.decode.block_table.mma",
          "query=f16[2,1,8,64] key_cache=f16[2,700,2,64] value_cache=f16[2,700,2,64] block_tables=i32[2,1]{1,0} "
          "context_lens=i32[2]" +
              lengths + " return_lse=true");
  }
}

// Several steps over both stages, tiles with rows of two sequences' ends, keys that do not fill a step.
TEST(Warpgroups, AgreeWithTheReference) {
  for (const std::string options : {"", " causal=true", " causal=true window=70", " softcap=5.0 return_lse=true",
                                    " causal=true sinks=f32[4] alibi_slopes=f32[4] return_lse=true",
                                    " softcap=3.0 alibi_slopes=f32[4] return_lse=true"}) {
    for (const std::string shapes : {"bf16[1,80,4,64] key=bf16[1,430,2,64] value=bf16[1,430,2,64]",
                                     "f16[2,30,4,128] key=f16[2,290,2,128] value=f16[2,290,2,96]",
                                     "bf16[1,33,4,256] key=bf16[1,170,1,256] value=bf16[1,170,1,256]"}) {
      Check("attention.gqa.prefill", "cuda.attention.gqa.prefill.wgmma", "query=" + shapes + options);
    }
  }
  Check("attention.gqa.prefill", "cuda.attention.gqa.prefill.wgmma",
        "query=bf16[1,40,4,64] key=bf16[1,300,2,64] value=bf16[1,300,2,64] attn_mask=bool[1,4,40,300]");
  Check("attention.gqa.prefill.ragged", "cuda.attention.gqa.prefill.ragged.wgmma",
        "query=bf16[90,4,64] key=bf16[420,2,64] value=bf16[420,2,64] cu_seqlens_q=i32[4]{0,20,20,90} "
        "cu_seqlens_kv=i32[4]{0,30,31,420} causal=true return_lse=true");
}

// Heads of more than 256 columns: several steps over both stages, tiles with rows of two sequences' ends, keys that do
// not fill a step, splits of a few rows whose keys are fewer than the shapes say.
TEST(WideHeads, AgreeWithTheReference) {
  const auto check = [](const char* operation, const std::string& kernel, const std::string& call) {
    Check(operation, "cuda." + std::string(operation) + kernel, call, false);
  };
  for (const std::string options :
       {"", " window=40 return_lse=true", " softcap=5.0 sinks=f32[4] alibi_slopes=f32[4] return_lse=true"}) {
    check("attention.gqa.prefill", "",
          "query=bf16[1,18,4,512] key=bf16[1,70,1,512] value=bf16[1,70,1,512] causal=true" + options);
    check("attention.gqa.decode", ".mma",
          "query=bf16[1,1,4,512] key=bf16[1,270,2,512] value=bf16[1,270,2,512]" + options);
  }
  check("attention.gqa.prefill", "",
        "query=f16[1,9,4,320] key=f16[1,260,1,320] value=f16[1,260,1,128] attn_mask=bool[1,4,9,260]");
  check("attention.gqa.prefill.ragged", "",
        "query=bf16[60,2,512] key=bf16[90,1,512] value=bf16[90,1,512] cu_seqlens_q=i32[4]{0,20,20,60} "
        "cu_seqlens_kv=i32[4]{0,30,31,90} causal=true return_lse=true");
  for (const std::string lengths : {"{300,1}", "{0,129}"}) {
    check("attention.gqa.decode.block_table", ".mma",
          "query=f16[2,1,4,512] key_cache=f16[2,300,1,512] value_cache=f16[2,300,1,512] block_tables=i32[2,1]{1,0} "
          "context_lens=i32[2]" +
              lengths + " return_lse=true");
  }
}

// Logits are in units of the soft-cap or the scale, but where slopes in these units could overflow.
TEST(Warpgroups, TakeEveryUnit) {
  for (const std::string options : {"scale=1e-12", "scale=1e-38", "scale=-0.2", "scale=0.0", "scale=40.0",
                                    "softcap=1e-12", "softcap=1e-37", "softcap=1e5", "scale=-0.2 softcap=2.0"}) {
    Check("attention.gqa.prefill", "cuda.attention.gqa.prefill.wgmma",
          "query=bf16[1,20,4,64] key=bf16[1,290,2,64] value=bf16[1,290,2,64] causal=true return_lse=true "
          "alibi_slopes=f32[4] " +
              options);
  }
}

// One expression for all soft-caps would be off by a share of the cap, whatever the logits are.
TEST(LargeCaps, AgreeWithTheReference) {
  for (const std::string id : {"cuda.attention.gqa.prefill", "cuda.attention.gqa.prefill.wgmma"}) {
    for (const std::string cap : {"90.0", "110.0", "1e4", "1e6", "1e37"}) {
      Check("attention.gqa.prefill", id,
            "query=bf16[1,20,4,64] key=bf16[1,290,2,64] value=bf16[1,290,2,64] return_lse=true softcap=" + cap);
    }
  }
  Check("attention.gqa.decode", "cuda.attention.gqa.decode.mma",
        "query=bf16[1,1,4,64] key=bf16[1,290,2,64] value=bf16[1,290,2,64] return_lse=true softcap=1e4");
}

// Masks that are added may have the least finite number, whose product with a factor above 1 is infinite; a base that
// is rounded before it is subtracted would be off by more than the logits themselves.
TEST(LargeMasks, AgreeWithTheReference) {
  for (const std::string id : {"cuda.attention.gqa.prefill", "cuda.attention.gqa.prefill.wgmma"}) {
    for (const std::string mask : {"~uniform(-3.4e38,-3.3e38)", "~uniform(-3.4e38,-1)", "~uniform(-1.1e9,-1e9)"}) {
      for (const std::string type : {"f16", "bf16"}) {
        Check("attention.gqa.prefill", id,
              "query=" + type + "[1,20,4,64] key=" + type + "[1,300,2,64] value=" + type +
                  "[1,300,2,64] attn_mask=f32[1,1,20,300]" + mask + " return_lse=true");
      }
    }
  }
}

// A KV head has a group of no query heads, by which nothing may be divided.
TEST(AttentionWithoutHeads, WritesNothing) {
  const std::string dense = " layout=BSHD return_lse=true";
  const std::string paged =
      " qo_indptr=i32[3]{0,1,3} kv_indptr=i32[3]{0,1,2} kv_indices=i32[2]{1,0} kv_last_page_len=i32[2]{5,16}";
  Check("attention.gqa.prefill", "cuda.attention.gqa.few",
        "query=f32[1,3,0,64] key=f32[1,40,2,64] value=f32[1,40,2,64]" + dense);
  Check("attention.gqa.prefill", "cuda.attention.gqa.prefill",
        "query=bf16[1,40,0,64] key=bf16[1,40,2,64] value=bf16[1,40,2,64]" + dense);
  Check("attention.gqa.prefill.paged", "cuda.attention.gqa.prefill.paged.fp32",
        "query=f32[3,0,64] paged_k_cache=f32[2,16,2,64] paged_v_cache=f32[2,16,2,64]" + paged);
  Check("attention.gqa.prefill.paged", "cuda.attention.gqa.prefill.paged",
        "query=bf16[3,0,64] paged_k_cache=bf16[2,16,2,64] paged_v_cache=bf16[2,16,2,64]" + paged);
}

}  // namespace
}  // namespace lz
