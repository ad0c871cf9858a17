"""Torch reference of attention.merge: any device, differentiable."""

import torch


def reference(v_a, s_a, v_b, s_b, *, sinks=None):
    compute = torch.promote_types(v_a.dtype, torch.float32)
    s = torch.stack([s_a, s_b]).to(compute)
    v = torch.stack([v_a, v_b]).to(compute)
    v = torch.where(s[..., None] == -torch.inf, 0.0, v)  # an empty part is not read
    empty = (s == -torch.inf).all(0)
    sink = None if sinks is None else sinks.to(compute)
    # The largest term is subtracted before any sum: lse + ln(2) of a large lse would round to lse.
    peak = s.detach().amax(0) if sink is None else torch.maximum(s.detach().amax(0), sink.detach())
    peak = torch.where(empty, 0.0, peak)
    weights = torch.exp(s - peak)
    total = weights.sum(0)
    if sink is not None:
        total = total + torch.exp(torch.where(sink == torch.inf, 0.0, sink - peak))
    output = (weights[..., None] * v).sum(0) / torch.where(empty, 1.0, total)[..., None]
    lse = torch.where(s.isposinf().any(0), torch.nan, torch.logsumexp(s, 0))
    return output.to(v_a.dtype), lse.float()
