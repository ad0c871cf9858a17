"""FlashAttention 2 of its own package."""

from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from torch.nn import functional as F

from layerzero.backends.flash_attn.packed import StridedOperations, probe_of, slopes_of


def _forward(query, keys, cu_q, most, how, rows):
    options = {"softmax_scale": how.scale, "causal": how.causal, "window_size": how.window, "softcap": how.softcap}
    options["alibi_slopes"] = how.slopes
    if rows is not None and keys.table is not None:
        # The function for decoding splits the keys among thread blocks.
        output, lse, *_ = flash_attn_with_kvcache(
            query.unflatten(0, (-1, rows)),
            keys.key,
            keys.value,
            cache_seqlens=keys.used,
            block_table=keys.table,
            return_softmax_lse=True,
            **options,
        )
        return output.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)
    offsets = F.pad(keys.used.cumsum(0, dtype=keys.used.dtype), (1, 0)) if keys.offsets is None else keys.offsets
    output, lse, *_ = flash_attn_varlen_func(
        query,
        keys.key,
        keys.value,
        cu_q,
        offsets,
        most,
        keys.longest,
        block_table=keys.table,
        return_attn_probs=True,
        **options,
    )
    return output, lse.transpose(0, 1)


operations = StridedOperations(_forward, flash_attn_func, lambda slopes: {"alibi_slopes": slopes_of(slopes)})
probe = probe_of(operations.attention)
