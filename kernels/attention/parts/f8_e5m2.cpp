// Attention over keys and values in FP8 E5M2 with scales.
#define LZ_ATTENTION_PART RunF8E5M2
#define LZ_ATTENTION_LOOP RunAll<attn::F8E5M2>(p, args)
#include "kernels/attention/parts/part.h"
