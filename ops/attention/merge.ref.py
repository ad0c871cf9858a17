"""Torch reference of attention.merge: any device, differentiable."""

import torch


def reference(v_a, s_a, v_b, s_b, *, sinks=None):
    compute = torch.promote_types(v_a.dtype, torch.float32)
    s = torch.stack([s_a, s_b]).to(compute)
    v = torch.stack([v_a, v_b]).to(compute)
    v = torch.where(s[..., None] == -torch.inf, 0.0, v)  # an empty part is not read
    empty = (s == -torch.inf).all(0)
    lse = torch.logsumexp(s, 0)
    weights = torch.softmax(torch.where(empty, 0.0, s), 0)
    if sinks is not None:
        weights = weights * torch.sigmoid(torch.where(empty, 0.0, lse) - sinks.to(compute))
    return (weights[..., None] * v).sum(0).to(v_a.dtype), torch.where(s.isposinf().any(0), torch.nan, lse).float()
