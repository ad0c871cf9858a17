// Attention over keys and values in bf16.
#define LZ_ATTENTION_PART RunBF16
#define LZ_ATTENTION_LOOP RunAll<BF16>(p, args)
#include "kernels/attention/parts/part.h"
