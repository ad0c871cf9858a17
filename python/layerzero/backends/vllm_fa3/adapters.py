"""FlashAttention 3 as vLLM builds it."""

from layerzero.backends.flash_attn.packed import probe_of
from layerzero.backends.flash_attn.vllm import operations_of

operations = operations_of(3)
attention = operations.attention
cross_attention = operations.cross_attention
ragged_attention = operations.ragged_attention
paged_attention = operations.paged_attention
paged_decode_attention = operations.paged_decode_attention
paged_cross_attention = operations.paged_cross_attention
paged_prefill_attention = operations.paged_prefill_attention
probe = probe_of(attention)
