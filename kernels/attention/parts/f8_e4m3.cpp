// Attention over keys and values in FP8 E4M3 with scales.
#define LZ_ATTENTION_PART RunF8E4M3
#define LZ_ATTENTION_LOOP RunAll<attn::F8E4M3>(p, args)
#include "kernels/attention/parts/part.h"
