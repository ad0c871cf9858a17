"""Torch reference of attention.{standard,gqa}.partials: any device, differentiable; (b, s, h, d) tensors."""

import torch

from ..common import attention as _attention


def reference(
    query, key, value, num_splits, *, raw=False, causal=None, scale=None, attn_mask=None, window=None, softcap=None,
    alibi_slopes=None,
):  # fmt: skip
    causal = attn_mask is None if causal is None else causal
    q, k, v = _attention.heads_first(query, key, value)
    how = {"window": window, "softcap": softcap, "slopes": alibi_slopes}
    scale = _attention.default_scale(scale, q.shape[-1])
    z, shift = _attention.logits(q, k, attn_mask, 0, q.shape[2], causal=causal, scale=scale, **how)
    run = -(-k.shape[2] // num_splits)
    outs, lses, sums = [], [], []
    for begin in range(0, run * num_splits, run) if run else [0] * num_splits:
        one = z[..., begin : begin + run]
        out, lse = _attention.weigh(one, v[:, :, begin : begin + run])
        if raw:
            top = one.amax(-1) if one.shape[-1] else lse
            total = torch.exp(lse - torch.where(top == -torch.inf, 0.0, top))
            total = torch.where(top == torch.inf, torch.nan, total)
            out, lse = out * torch.where(top == -torch.inf, 1.0, total)[..., None], top
            sums.append(total)
        outs.append(out)
        lses.append((lse[..., None] + shift).squeeze(-1))
    partials, lse, *rest = (
        torch.stack(parts).transpose(2, 3).flatten(1, 2).float() for parts in (outs, lses, sums) if parts
    )
    return (partials, lse, *rest)
