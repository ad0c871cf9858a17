"""Torch reference of moe.route: any device, differentiable in the weights, float64 inside."""

import torch


def _top(values, k):
    """Indices of the k largest, NaN first, ties to the lower index."""
    values = values.detach()
    order = torch.where(values.isnan(), torch.inf, values).sort(dim=-1, descending=True, stable=True).indices
    nan_first = values.gather(-1, order).isnan().sort(dim=-1, descending=True, stable=True).indices
    return order.gather(-1, nan_first)[..., :k]


def _sparse_weights(x, ids, jitter):
    """The softmax of each chosen expert over those near it that were not chosen before it."""
    gone, weights = torch.zeros_like(x, dtype=torch.bool), []
    for best in ids.split(1, dim=-1):
        m = x.gather(-1, best)
        far = ((m - x) / torch.maximum(x.abs(), m)).detach() > 2 * jitter
        weights.append(1 / (x - m).masked_fill(gone | far, -torch.inf).exp().sum(-1, keepdim=True))
        gone = gone.scatter(-1, best, True)
    return torch.cat(weights, dim=-1) if weights else x[..., :0]


def reference(
    logits, k, *, bias=None, scoring="softmax", renormalize=False, scale=1.0, num_groups=1, top_groups=1,
    group_score="max", min_sum=0.0, jitter=0.0,
):  # fmt: skip
    x = logits.double()
    if scoring == "sparsemixer":
        ids = _top(x, k)
        weights = _sparse_weights(x, ids, jitter)
        return (weights * scale).float(), ids.int()
    if scoring == "softmax":
        scores = x.softmax(-1) if x.shape[-1] else x
    elif scoring == "sigmoid":
        scores = x.sigmoid()
    else:
        scores = torch.nn.functional.softplus(x, threshold=1e4)
        below = scores == 0  # outside float64, where the slope of sqrt is infinite and that of the whole is 0
        scores = torch.where(below, 0, torch.where(below, 1, scores).sqrt())
    choice = scores if bias is None else scores + bias.double()
    experts = torch.arange(x.shape[-1], device=x.device).expand(x.shape)
    if num_groups > 1:
        grouped = choice.unflatten(-1, (num_groups, -1))
        best = grouped.gather(-1, _top(grouped, 1 if group_score == "max" else 2)).sum(-1)
        groups = _top(best, top_groups).sort(dim=-1).values
        size = grouped.shape[-1]
        experts = (groups[..., None] * size + torch.arange(size, device=x.device)).flatten(-2)
    ids = experts.gather(-1, _top(choice.gather(-1, experts), k))
    weights = scores.gather(-1, ids)
    if renormalize:
        total = weights.sum(-1, keepdim=True).clamp(min=min_sum)
        weights = weights / torch.where(total == 0, 1, total)  # a sum of 0 has only zero terms
    return (weights * scale).float(), ids.int()
