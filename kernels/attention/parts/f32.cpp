// Attention over keys and values in f32.
#define LZ_ATTENTION_PART RunF32
#define LZ_ATTENTION_LOOP RunAll<float>(p, args)
#include "kernels/attention/parts/part.h"
