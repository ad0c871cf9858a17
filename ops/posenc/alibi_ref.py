"""Torch reference of posenc.alibi: any device, differentiable."""

import torch


def reference(slopes, s_q, s_kv, *, causal=False):
    row, column = (torch.arange(n, device=slopes.device) for n in (s_q, s_kv))
    distance = row[:, None] + (s_kv - s_q) - column
    bias = -slopes.to(torch.promote_types(slopes.dtype, torch.float32))[:, None, None] * distance.abs()
    return (bias.masked_fill(distance < 0, -torch.inf) if causal else bias).to(slopes.dtype)
