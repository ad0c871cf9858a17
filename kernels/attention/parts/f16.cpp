// Attention over keys and values in f16.
#define LZ_ATTENTION_PART RunF16
#define LZ_ATTENTION_LOOP RunAll<F16>(p, args)
#include "kernels/attention/parts/part.h"
