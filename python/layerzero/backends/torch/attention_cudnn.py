"""Sinks and the lse with cuDNN through torch's function, whose log of the sum of exponentials both need.

On SM90 cuDNN takes half the time of torch's FlashAttention 2 and of tiles without `wgmma`. It plans at the first call of new lengths
(about 34 ms on an H200), so the rows begin at 128 queries: a decode over a growing cache would plan at every step.
"""

import torch

from layerzero.backends.torch.attention import _cudnn_allowed, as_given, heads_first, positive_scale
from layerzero.backends.torch.attention_flash import finite_or_nan, flash
from layerzero.torch.captures import plans_first


@plans_first
def cudnn(query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, lse, layout):
    """Serves calls without a causal triangle, or with a square one: each row sees a key."""
    if not _cudnn_allowed(None):
        return flash(query, key, value, causal, scale, None, 0.0, None, None, sinks, None, lse, layout)
    query, scale = positive_scale(query, scale)
    q, k, v = heads_first(layout, query, key, value)
    output, sums = torch._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, bool(causal), False, scale=scale
    )[:2]
    sums = sums.reshape(q.shape[:3])
    if sinks is not None:  # a sink is a key without a value: its share of the sum is removed from the output
        output.mul_(torch.sigmoid(sums - sinks.float()[:, None]).unsqueeze(-1))
    output = as_given(layout, output)
    return (output, finite_or_nan(sums)) if lse else output


@plans_first
def cross_cudnn(query, key, value, scale, attn_mask, dropout_p, softcap, sinks, lse, layout):
    return cudnn(query, key, value, False, scale, None, 0.0, None, None, sinks, None, lse, layout)
