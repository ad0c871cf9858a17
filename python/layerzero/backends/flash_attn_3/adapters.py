"""FlashAttention 3 of its own package, whose module is flash_attn_interface."""

from flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

from layerzero.backends.flash_attn.packed import StridedOperations, probe_of


def _forward(query, keys, cu_q, most, how, rows):
    options = {"softmax_scale": how.scale, "causal": how.causal, "window_size": how.window, "softcap": how.softcap}
    if keys.table is None:
        output, lse, *_ = flash_attn_varlen_func(
            query, keys.key, keys.value, cu_q, keys.offsets, most, keys.longest, return_attn_probs=True, **options
        )
        return output, lse.transpose(0, 1)
    output, lse, *_ = flash_attn_with_kvcache(
        query,
        keys.key,
        keys.value,
        cache_seqlens=keys.used,
        page_table=keys.table,
        cu_seqlens_q=cu_q,
        max_seqlen_q=most,
        return_softmax_lse=True,
        **options,
    )
    return output, lse.transpose(0, 1)


operations = StridedOperations(_forward, flash_attn_func, lambda slopes: {"num_splits": 0})  # its own choice
probe = probe_of(operations.attention)
