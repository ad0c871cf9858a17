// Attention of many rows in FP32 over several steps of keys, whole and in parts: every form of the call, and every
// option.
#include <gtest/gtest.h>

#include "kernels/attention/splits_cuda.h"
#include "tests/cuda_emulation/host_rows.h"

namespace lz {
namespace {

// Tiles whose last rows are not there, keys that do not fill a step, rows that see no key.
TEST(FloatTiles, OfDenseKeysAgreeWithTheReference) {
  for (const std::string options :
       {"", " causal=false", " causal=true window=40 return_lse=true", " softcap=5.0 return_lse=true",
        " sinks=f32[4] alibi_slopes=f32[4] return_lse=true"}) {
    for (const std::string shapes : {"f32[1,70,4,64] key=f32[1,300,2,64] value=f32[1,300,2,64]",
                                     "f32[2,70,4,80] key=f32[2,45,4,80] value=f32[2,45,4,128]",
                                     "f32[1,37,4,256] key=f32[1,141,1,256] value=f32[1,141,1,40]"}) {
      const bool grouped = shapes.find("80]") == std::string::npos;
      CheckOnce(grouped ? "attention.gqa.prefill" : "attention.standard.prefill",
                grouped ? "cuda.attention.gqa.prefill.fp32" : "cuda.attention.standard.prefill.fp32",
                "query=" + shapes + options);
    }
  }
}

TEST(FloatTiles, TakeMasksAndHideNaN) {
  const std::string shapes = "query=f32[1,40,4,64] key=f32[1,300,2,64] value=f32[1,300,2,64]";
  for (const std::string mask :
       {"bool[1,4,40,300]", "bool[40,1]", "f32[1,1,40,300]", "f32[1,1,40,300]~uniform(-3.4e38,-3.3e38)"}) {
    CheckOnce("attention.gqa.prefill", "cuda.attention.gqa.prefill.fp32",
              shapes + " attn_mask=" + mask + " return_lse=true");
    CheckOnce("attention.cross.prefill", "cuda.attention.cross.prefill.fp32", shapes + " attn_mask=" + mask);
  }
  CheckOnce("attention.gqa.prefill", "cuda.attention.gqa.prefill.fp32",
            "query=f32[1,70,4,64] key=f32[1,300,2,64]@nan value=f32[1,300,2,64]@nan window=9 return_lse=true");
}

// The rows of few queries take tiles where a sequence has enough rows.
TEST(FloatTiles, OfPackedAndPagedSequencesAgreeWithTheReference) {
  const std::string packed =
      " cu_seqlens_q=i32[4]{0,20,20,90} cu_seqlens_kv=i32[4]{0,30,31,420} causal=true return_lse=true";
  for (const std::string options : {"", " window=50", " softcap=5.0 sinks=f32[4] alibi_slopes=f32[4]"}) {
    CheckOnce("attention.gqa.prefill.ragged", "cuda.attention.gqa.prefill.ragged.fp32",
              "query=f32[93,4,64] key=f32[420,2,64] value=f32[420,2,64]" + packed + options);
    CheckOnce("attention.gqa.prefill.ragged", "cuda.attention.gqa.prefill.ragged.fp32",
              "query=f32[93,4,128] key=f32[420,2,128] value=f32[420,2,96]" + packed + options);
  }
  // The second sequence has more queries than keys.
  const std::string lists =
      " kv_indptr=i32[3]{0,9,11} kv_indices=i32[11]{3,1,4,4,5,9,2,6,0,8,7} kv_last_page_len=i32[2]{13,2}";
  const std::string caches = " paged_k_cache=f32[10,16,2,64] paged_v_cache=f32[10,16,2,64]";
  for (const std::string options : {"", " window_left=30 sinks=f32[4]", " k_scale=f32[2] v_scale=f32[2]"}) {
    CheckOnce("attention.gqa.prefill.paged", "cuda.attention.gqa.prefill.paged.fp32",
              "query=f32[95,4,64]" + caches + lists + " qo_indptr=i32[3]{0,70,95} return_lse=true" + options);
  }
  CheckOnce("attention.cross.prefill.paged", "cuda.attention.cross.few.paged",
            "query=f32[2,70,4,64]" + caches + lists + " sinks=f32[4] return_lse=true");
  CheckOnce("attention.gqa.decode.pod", "cuda.attention.gqa.decode.pod.fp32",
            "query_p=f32[93,4,64] key_p=f32[420,2,64] value_p=f32[420,2,64] cu_seqlens_q=i32[4]{0,20,20,90} "
            "cu_seqlens_kv=i32[4]{0,30,31,420} query_d=f32[2,4,64]" +
                caches + lists + " return_lse=true");
}

TEST(FloatTiles, InPartsAgreeWithTheReference) {
  for (const std::string raw : {"false", "true"}) {
    CheckOnce("attention.gqa.partials", "cuda.attention.gqa.partials.fp32",
              "query=f32[2,37,4,128] key=f32[2,150,2,128] value=f32[2,150,2,72] num_splits=4 window=60 "
              "alibi_slopes=f32[4]~uniform(0,0.1) raw=" +
                  raw);
  }
}

TEST(FloatTiles, OfBlocksAgreeWithTheReference) {
  CheckOnce("attention.sparse.block", "cuda.attention.sparse.block.fp32",
            "q=f32[80,4,64] k=f32[120,2,64] v=f32[120,2,64] indptr=i32[3]{0,4,6} indices=i32[6]{0,7,3,19,1,2} R=40 C=6 "
            "return_lse=true");
  CheckOnce("attention.sparse.variable_block", "cuda.attention.sparse.variable_block.fp32",
            "q=f32[90,4,64] k=f32[148,2,64] v=f32[148,2,64] block_mask=bool[2,2,3]{1,0,1,0,1,1,1,1,0,0,0,1} "
            "row_sizes=i32[2,2]{73,17,90,0} col_sizes=i32[2,3]{16,32,100,7,41,100} return_lse=true");
  CheckOnce("attention.sparse.variable_block", "cuda.attention.sparse.variable_block.fp32",
            "q=f32[40,4,256] k=f32[60,4,256] v=f32[60,4,128] block_mask=bool[4,1,2]{1,0,1,1,0,1,0,0} "
            "row_sizes=i64[4,1]{40,40,40,40} col_sizes=i64[4,2]{33,27,59,1,0,60,30,30}");
}

TEST(FloatTiles, OfLatentsAgreeWithTheReference) {
  for (const std::string d : {"64", "512"}) {
    CheckOnce("attention.mla.decode", "cuda.attention.mla.decode.fp32",
              "q_nope=f32[3,21," + d + "] q_pe=f32[3,21,64] ckv=f32[300,1," + d +
                  "] kpe=f32[300,1,64] sm_scale=0.05 causal=true return_lse=true");
    CheckOnce("attention.mla.decode.paged", "cuda.attention.mla.decode.paged.fp32",
              "q_nope=f32[2,20," + d + "] q_pe=f32[2,20,64] ckv_cache=f32[10,16," + d +
                  "] kpe_cache=f32[10,16,64] kv_indptr=i32[3]{0,9,11} kv_indices=i32[11]{3,1,4,4,5,9,2,6,0,8,7} "
                  "kv_last_page_len=i32[2]{13,2} sm_scale=0.05 return_lse=true");
  }
  for (const std::string causal : {"true", "false"}) {
    CheckOnce("attention.mla.prefill", "cuda.attention.mla.prefill.fp32",
              "q_nope=f32[1,70,2,128] q_pe=f32[1,70,2,64] k_nope=f32[1,150,2,128] k_pe=f32[1,150,1,64] "
              "value=f32[1,150,2,128] return_lse=true causal=" +
                  causal);
  }
  CheckOnce("attention.mla.prefill", "cuda.attention.mla.prefill.fp32",
            "q_nope=f32[1,70,2,64] q_pe=f32[1,70,2,8] k_nope=f32[1,90,2,64] k_pe=f32[1,90,1,8] value=f32[1,90,2,72]");
}

TEST(FloatTiles, AreForRowsThatFillThem) {
  attention::CudaProblem p = {.type = DType::kF32, .cache = DType::kF32};
  p.b = 2, p.s_q = 8, p.s_kv = 100, p.d_qk = p.d_v = 64;
  attention::SetHeads(&p, 8, 2);
  EXPECT_FALSE(attention::FillsFloatTiles(p)) << "32 rows";
  EXPECT_EQ(attention::CutOfFew(p).rows, 8);
  p.s_q = 9;
  EXPECT_TRUE(attention::FillsFloatTiles(p));
  EXPECT_EQ(attention::CutOfFew(p).rows, 64);
  p.cache = DType::kI8;
  EXPECT_FALSE(attention::FillsFloatTiles(p)) << "codes are converted by the kernel of few rows";
}

}  // namespace
}  // namespace lz
