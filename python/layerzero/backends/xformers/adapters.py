"""Attention by xFormers' memory_efficient_attention: grouped heads as a fifth axis, causality and windows as biases."""

import torch
from xformers.ops.fmha import memory_efficient_attention_forward, memory_efficient_attention_forward_requires_grad
from xformers.ops.fmha.attn_bias import (
    LowerTriangularFromBottomRightLocalAttentionMask,
    LowerTriangularFromBottomRightMask,
)

from layerzero.backends.flash_attn.packed import probe_of
from layerzero.backends.torch.attention import positive_scale

STEP = 8  # elements: rows of a tensor of biases begin at multiples of it


def _bias_of(causal, window):
    """Both align bottom-right; a window counts the row's own position."""
    if window is not None and window >= 0:
        return LowerTriangularFromBottomRightLocalAttentionMask(int(window))
    return LowerTriangularFromBottomRightMask() if causal else None


def _tensor_bias(mask, query, keys, kv_heads):
    """Returns a mask as an addition in the query's dtype, no axis broadcast, in rows of whole steps: (b, h, s_q, s_kv), and
    (b, h_kv, group, s_q, s_kv) of grouped heads."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
    b, s_q, heads, _ = query.shape
    axes = (b, heads, s_q) if heads == kv_heads else (b, kv_heads, heads // kv_heads, s_q)
    rows = query.new_zeros((*axes, -(-keys // STEP) * STEP))
    rows[..., :keys] = mask if len(axes) == 3 else mask.expand(b, heads, s_q, keys).unflatten(1, axes[1:3])
    return rows[..., :keys]


def _forward(query, key, value, bias, scale, return_lse):
    """All (b, s, h, d). Returns output and lse (b, h, s_q) or None."""
    (b, s_q, heads, _), kv_heads = query.shape, key.shape[2]
    group = heads // kv_heads
    if group > 1:
        query = query.unflatten(2, (kv_heads, group))
        key, value = (t.unsqueeze(3).expand(-1, -1, -1, group, -1) for t in (key, value))
    if not return_lse:
        output = memory_efficient_attention_forward(query, key, value, attn_bias=bias, scale=scale)
        return output.reshape(b, s_q, heads, -1), None
    output, lse = memory_efficient_attention_forward_requires_grad(query, key, value, attn_bias=bias, scale=scale)
    return output.reshape(b, s_q, heads, -1), lse.reshape(b, heads, -1)[..., :s_q]  # it may be longer


def attention(
    query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, return_lse, layout
):
    """A row whose mask hides every key is not defined in xFormers: it is replaced."""
    query, scale = positive_scale(query, scale)
    q, k, v = (t.transpose(1, 2) if layout == "BHSD" else t for t in (query, key, value))
    bias = _bias_of(causal, window)
    if attn_mask is not None:
        bias = _tensor_bias(attn_mask, q, *k.shape[1:3])
    output, lse = _forward(q, k, v, bias, scale, return_lse)
    if attn_mask is not None:
        none = bias.isneginf().all(-1).reshape(q.shape[0], q.shape[2], q.shape[1])
        output = output.masked_fill(none.transpose(1, 2).unsqueeze(-1), 0)
        lse = lse.masked_fill(none, -torch.inf) if return_lse else None
    output = output.transpose(1, 2) if layout == "BHSD" else output
    return (output, lse) if return_lse else output


def cross_attention(query, key, value, scale, attn_mask, dropout_p, softcap, sinks, return_lse, layout):
    return attention(query, key, value, False, scale, attn_mask, 0.0, None, None, None, None, return_lse, layout)


probe = probe_of(attention)
