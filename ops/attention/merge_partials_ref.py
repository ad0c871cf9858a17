"""Torch reference of attention.merge.partials: any device, differentiable."""

import torch


def reference(partials, part_lse, row_sum=None, *, sinks=None, dtype="float32"):
    compute = torch.promote_types(torch.promote_types(partials.dtype, torch.float32), getattr(torch, dtype))
    s = part_lse.to(compute)
    empty = s == -torch.inf  # such a part is not read
    o = torch.where(empty[..., None], 0.0, partials.to(compute))
    sums = torch.where(empty, 0.0, 1.0 if row_sum is None else row_sum.to(compute))
    if s.shape[0] == 0:
        s, sums, o = (t.new_full((1, *t.shape[1:]), fill) for t, fill in ((s, -torch.inf), (sums, 0.0), (o, 0.0)))
    top = s.detach().amax(0)
    none = top == -torch.inf
    top = torch.where(none, 0.0, top)
    peak = top if sinks is None else torch.maximum(top, sinks.detach().to(compute))
    weights = torch.exp(s - top)
    total = (weights * sums).sum(0)
    lse = torch.where(none, -torch.inf, top + torch.log(torch.where(none, 1.0, total)))
    rest = torch.exp(top - peak)
    denominator = total * rest
    if sinks is not None:
        sink = sinks.to(compute)
        denominator = denominator + torch.where(sink == torch.inf, 1.0, torch.exp(sink - peak))
    out = (weights[..., None] * o).sum(0) * rest[..., None] / torch.where(none, 1.0, denominator)[..., None]
    return out.to(getattr(torch, dtype)), lse.float()
