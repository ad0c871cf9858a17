"""PyTorch's attention as kernels: rows of attention.{standard,gqa,cross}.{prefill,decode}.

What an adapter does beside the call is what the rows of capabilities.json leave to it: views between layouts, causal
alignment (bottom-right here, top-left in torch), masks in the form that the kernel reads.
"""

import torch
from torch.nn import functional as F


def _heads_first(layout, *tensors):
    return tensors if layout == "BHSD" else tuple(t.transpose(1, 2) for t in tensors)


def _as_given(layout, output):
    return output if layout == "BHSD" else output.transpose(1, 2)


def _alignment(query, key, causal, attn_mask):
    """(is_causal, mask) with torch's top-left alignment for what the call means by causal."""
    s_q, s_kv = query.shape[-2], key.shape[-2]
    if not causal or s_q == 1:  # one query stands at the last position and sees every key
        return False, attn_mask
    if s_q == s_kv:
        return True, attn_mask
    return False, torch.ones(s_q, s_kv, dtype=torch.bool, device=query.device).tril(s_kv - s_q)


def _positive_scale(query, scale):
    """torch's CPU kernel multiplies the -inf of hidden keys by the scale: the query takes its sign, or its 0."""
    if scale is None or scale > 0:
        return query, scale
    return (query * 0, 1.0) if scale == 0 else (-query, -scale)


def _four_axes(mask):
    return mask if mask is None else mask[(None,) * (4 - mask.dim())]


def additive(query, key, mask):
    """A mask as a float bias of the query's dtype whose rows start at multiples of 16 bytes."""
    if mask is None:
        return None
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    mask = _four_axes(mask)
    width = -(-shape[3] // 16) * 16
    bias = query.new_empty((*mask.shape[:2], mask.shape[2], width))[..., : shape[3]]
    if mask.dtype == torch.bool:
        bias.zero_().masked_fill_(~mask, float("-inf"))
    else:
        bias.copy_(mask)
    return bias.expand(shape)


def _wants_grad(*tensors):
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _exact(output, query, key, value, causal, scale, attn_mask, layout, dropout_p=0.0):
    """The output, or the reference's where torch's may be wrong.

    torch adds masks to logits and weights hidden values by 0, so that a NaN of a hidden key or an infinity of a hidden
    value shows; its CPU kernel gives 0 for a row whose logits are all NaN. Whether they show is read from the device;
    within a capture nothing may be read, and the reference's is recorded.
    """
    if dropout_p or not output.numel():  # the reference knows no dropout
        return output
    if not (output.is_cuda and torch.cuda.is_current_stream_capturing()):
        out, q, k = (t.detach() for t in (output, query, key))
        finite = bool((out.sum(dtype=torch.float32) + q.sum(dtype=torch.float32)).isfinite())
        if finite and (not bool((out[..., 0] == 0).any()) or bool(k.sum(dtype=torch.float32).isfinite())):
            return output
    from layerzero._references import call_reference

    given = {"query": query, "key": key, "value": value, "causal": bool(causal), "scale": scale, "attn_mask": attn_mask}
    return call_reference("attention", given, layout)


def _cross(adapter):
    """The adapter of `attention` as one of `cross_attention`, which has no causal."""

    def cross(query, key, value, *rest):
        return adapter(query, key, value, False, *rest)

    return cross


def attend(function, query, key, value, causal, scale, attn_mask, dropout_p, layout):
    """The operation by a function whose causal is top-left: function(q, k, v, mask, is_causal, scale), heads first.

    Any such function will do, of other libraries too: what it makes of NaN and infinity in hidden keys is put right.
    """
    scaled, factor = _positive_scale(query, scale)
    q, k, v = _heads_first(layout, scaled, key, value)
    aligned, mask = _alignment(q, k, causal, attn_mask)
    output = _as_given(layout, function(q, k, v, mask, aligned, factor))
    return _exact(output, query, key, value, causal, scale, attn_mask, layout, dropout_p)


def _cpu(q, k, v, mask, causal, scale):
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=_four_axes(mask), is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def sdpa_cpu(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    """torch's CPU flash kernel: the choice of `scaled_dot_product_attention` wherever its rows hold."""
    return attend(_cpu, query, key, value, causal, scale, attn_mask, dropout_p, rest[-1])


def sdpa_math(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    """The composite formula, on any device."""

    def math(q, k, v, mask, causal, scale):
        if mask is not None and mask.dtype == torch.bool:  # the aten function would add it as 0 and 1
            mask = q.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))
        return torch._scaled_dot_product_attention_math(
            q, k, v, mask, dropout_p or 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )[0]

    return attend(math, query, key, value, causal, scale, attn_mask, dropout_p, rest[-1])


def sdpa_flash(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    """The aten function aligns causal bottom-right, as the operation does."""
    layout = rest[-1]
    query, scale = _positive_scale(query, scale)
    q, k, v = _heads_first(layout, query, key, value)
    output = torch._scaled_dot_product_flash_attention(q, k, v, dropout_p or 0.0, bool(causal), False, scale=scale)[0]
    return _as_given(layout, output)


def sdpa_efficient(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    layout = rest[-1]
    scaled, factor = _positive_scale(query, scale)
    q, k, v = _heads_first(layout, scaled, key, value)
    aligned, mask = _alignment(q, k, causal, attn_mask)
    output = torch._scaled_dot_product_efficient_attention(
        q, k, v, additive(q, k, mask), _wants_grad(q, k, v), dropout_p or 0.0, aligned, scale=factor
    )[0]
    output = _as_given(layout, output)
    if mask is None and not aligned:  # every row sees every key
        return output
    return _exact(output, query, key, value, causal, scale, attn_mask, layout, dropout_p)


def sdpa_cudnn(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    layout = rest[-1]
    scaled, factor = _positive_scale(query, scale)
    q, k, v = _heads_first(layout, scaled, key, value)
    aligned, mask = _alignment(q, k, causal, attn_mask)
    output = torch._scaled_dot_product_cudnn_attention(
        q, k, v, additive(q, k, mask), _wants_grad(q, k, v), dropout_p or 0.0, aligned, False, scale=factor
    )[0]
    output = _as_given(layout, output)
    return output if mask is None else _exact(output, query, key, value, causal, scale, attn_mask, layout, dropout_p)


cross_sdpa_cpu = _cross(sdpa_cpu)
cross_sdpa_math = _cross(sdpa_math)
cross_sdpa_flash = _cross(sdpa_flash)
cross_sdpa_efficient = _cross(sdpa_efficient)
cross_sdpa_cudnn = _cross(sdpa_cudnn)
