"""FlashAttention 2 of its own package."""

from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from torch.nn import functional as F

from layerzero.backends.flash_attn.packed import Operations, finished, probe_of, slopes_of, window_of
from layerzero.backends.torch.attention import positive_scale


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


class _Package(Operations):
    """The function for four-axis tensors takes any strides, so nothing is packed."""

    def dense(self, query, key, value, causal, scale, window, softcap, sinks, slopes, return_lse):
        query, scale = positive_scale(query, scale)
        output, lse, *_ = flash_attn_func(
            query,
            key,
            value,
            softmax_scale=scale,
            causal=bool(causal),
            window_size=window_of(window),
            softcap=softcap or 0.0,
            alibi_slopes=slopes_of(slopes),
            return_attn_probs=True,
        )
        output, lse = finished(output, lse.transpose(1, 2), sinks, return_lse)
        return output, lse.transpose(1, 2) if return_lse else None


operations = _Package(_forward)
attention = operations.attention
cross_attention = operations.cross_attention
ragged_attention = operations.ragged_attention
paged_attention = operations.paged_attention
paged_decode_attention = operations.paged_decode_attention
paged_cross_attention = operations.paged_cross_attention
paged_prefill_attention = operations.paged_prefill_attention
probe = probe_of(attention)
