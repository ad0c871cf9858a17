"""FlashAttention 4 (CuTe DSL), whose module is flash_attn.cute. It compiles at the first call of a kind."""

from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

from layerzero.backends.flash_attn.packed import ALL, Operations, finished, probe_of, window_of
from layerzero.backends.torch.attention import positive_scale


def _window(window):
    """A window that hides nothing is None here, not -1."""
    return (None, None) if window == ALL else window


def _forward(query, keys, cu_q, most, how, rows):
    output, lse, *_ = flash_attn_varlen_func(
        query,
        keys.key,
        keys.value,
        cu_seqlens_q=cu_q,
        cu_seqlens_k=keys.offsets,
        max_seqlen_q=most,
        max_seqlen_k=keys.longest,
        seqused_k=keys.used,
        page_table=keys.table,
        softmax_scale=how.scale,
        causal=how.causal,
        window_size=_window(how.window),
        learnable_sink=how.sinks,
        softcap=how.softcap,
        return_lse=True,
    )
    return output, lse.transpose(0, 1)


class _Operations(Operations):
    """Dense calls take the function of four-axis tensors, which has any strides, so that nothing is packed."""

    def dense(self, query, key, value, causal, scale, window, softcap, sinks, slopes, return_lse):
        if sinks is not None:
            return super().dense(query, key, value, causal, scale, window, softcap, sinks, slopes, return_lse)
        query, scale = positive_scale(query, scale)
        output, lse, *_ = flash_attn_func(
            query,
            key,
            value,
            softmax_scale=scale,
            causal=bool(causal),
            window_size=_window(window_of(window)),
            softcap=softcap or 0.0,
            return_lse=return_lse,
        )
        if not return_lse:
            return output, None
        output, lse = finished(output, lse.transpose(1, 2), None, True)
        return output, lse.transpose(1, 2)


operations = _Operations(_forward, native_sinks=True)
probe = probe_of(operations.attention)
