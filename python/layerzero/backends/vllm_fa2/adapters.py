"""FlashAttention 2 as vLLM builds it."""

from layerzero.backends.flash_attn.packed import probe_of
from layerzero.backends.flash_attn.vllm import operations_of

operations = operations_of(2)
probe = probe_of(operations.attention)
