// Attention over keys and values in int8 with scales.
#define LZ_ATTENTION_PART RunI8
#define LZ_ATTENTION_LOOP RunAll<int8_t>(p, args)
#include "kernels/attention/parts/part.h"
