// Attention over keys and values in FP8 with scales.
#define LZ_ATTENTION_PART RunF8
#define LZ_ATTENTION_LOOP (p.cache == DType::kF8E4M3 ? RunAll<attn::F8E4M3> : RunAll<attn::F8E5M2>)(p, args)
#include "kernels/attention/parts/part.h"
