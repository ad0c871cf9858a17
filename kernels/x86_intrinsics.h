// The intrinsics of x86-64, and function attributes for the instruction sets that kernels use. For files of
// x86-64 only.
#pragma once

// gcc 12 warns about the undefined upper parts in its own intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#define LZ_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define LZ_AVX512_INLINE LZ_AVX512 __attribute__((always_inline)) inline
#define LZ_AVX512VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define LZ_AVX512BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define LZ_AVX512BF16_INLINE LZ_AVX512BF16 __attribute__((always_inline)) inline
#define LZ_AVX512BF16_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")))
#define LZ_AVX512BF16_VBMI_INLINE LZ_AVX512BF16_VBMI __attribute__((always_inline)) inline
#define LZ_AVX512BF16_VBMI_LAMBDA \
  __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")))
