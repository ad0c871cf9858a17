"""Mixture of experts with torch's grouped products, without reading from the device: routing, products, blocks."""

import torch

from layerzero.backends.torch.mlp import hidden
from layerzero.errors import KernelExecutionError


def _check_offsets(offsets, rows):
    bounds = offsets.tolist()
    if bounds != sorted(bounds) or bounds[0] < 0 or bounds[-1] > rows:
        raise KernelExecutionError(
            "grouped_gemm: offsets", f"numbers from 0 to {rows} that do not decrease", str(bounds)
        )


def grouped_gemm(input, weight, offsets, bias):
    rows = input.shape[0]
    if not offsets.is_cuda:
        _check_offsets(offsets, rows)
    output = torch._grouped_mm(input, weight.transpose(1, 2), offs=offsets[1:].int())
    row = torch.arange(rows, device=input.device)
    if bias is not None:
        expert = torch.searchsorted(offsets[1:].contiguous(), row, right=True).clamp_(max=weight.shape[0] - 1)
        output = output + bias.index_select(0, expert)
    # The first expert's product begins at row 0; torch leaves rows after the last expert's undefined.
    return output.masked_fill(((row < offsets[0]) | (row >= offsets[-1]))[:, None], 0)


def fused_moe(
    input, expert_ids, expert_weights, gate_weight, down_weight, up_weight, gate_bias, up_bias, down_bias, *rest
):
    """*rest: activation, limit, alpha, up_offset, interleaved, weighted. Rows are sorted by expert, multiplied with
    their expert's weights, and scattered back to their tokens."""
    *activation, weighted = rest
    experts, k, tokens = gate_weight.shape[0], expert_ids.shape[-1], input.shape[:-1].numel()
    x = input.reshape(tokens, input.shape[-1])
    ids, weights = (t.reshape(tokens * k) for t in (expert_ids, expert_weights))
    known = (ids >= 0) & (ids < experts)
    expert, order = torch.where(known, ids, experts).sort(stable=True)  # rows without an expert come last
    ends = torch.searchsorted(expert, torch.arange(experts, dtype=expert.dtype, device=x.device), right=True).int()
    expert = expert.clamp_(max=experts - 1)

    def product(rows, weight, bias):
        output = torch._grouped_mm(rows, weight.transpose(1, 2), offs=ends)
        return output if bias is None else output + bias.index_select(0, expert)

    rows = x.index_select(0, order // k)
    if weighted == "input":
        rows = (rows * weights.index_select(0, order)[:, None]).to(rows.dtype)
    gate = product(rows, gate_weight, gate_bias)
    up = None if up_weight is None else product(rows, up_weight, up_bias)
    output = product(hidden(gate, up, down_weight.shape[2], *activation), down_weight, down_bias)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(tokens * k, device=x.device))
    output = output.index_select(0, back).masked_fill_(~known[:, None], 0).view(tokens, k, down_weight.shape[1])
    if weighted == "output":
        factor = weights.reshape(tokens, 1, k).masked_fill(~known.view(tokens, 1, k), 0)
        output = torch.bmm(factor.to(output.dtype), output)[:, 0]
    else:
        output = output.sum(1)
    return output.reshape(*input.shape[:-1], output.shape[-1])


def _scores(logits, scoring):
    x = logits.double()
    if scoring == "softmax":
        return x.softmax(-1)
    if scoring == "sigmoid":
        return x.sigmoid()
    return torch.nn.functional.softplus(x, threshold=1e4).sqrt()


def _top(values, k):
    """Returns the indices of the k largest, NaN first, ties to the lower index."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :k]


def _of_groups(choice, num_groups, top_groups, group_score):
    """Returns the indices of the experts in the best groups, ascending."""
    grouped = choice.unflatten(-1, (num_groups, -1))
    size = grouped.shape[-1]
    best = grouped.gather(-1, _top(grouped, 1 if group_score == "max" else 2)).sum(-1)
    groups = _top(best, top_groups).sort(dim=-1).values
    return (groups[..., None] * size + torch.arange(size, device=choice.device)).flatten(-2)


def route(logits, k, bias, scoring, renormalize, scale, num_groups, top_groups, group_score, min_sum, jitter):
    scores = _scores(logits, scoring)
    choice = scores if bias is None else scores + bias
    if num_groups > 1:
        experts = _of_groups(choice, num_groups, top_groups, group_score)
        ids = experts.gather(-1, _top(choice.gather(-1, experts), k))
    else:
        ids = _top(choice, k)
    weights = scores.gather(-1, ids)
    if renormalize:
        total = weights.sum(-1, keepdim=True).clamp(min=min_sum)
        weights = weights / total.masked_fill(total == 0, 1)
    if scale != 1.0:
        weights = weights * scale
    return weights.float(), ids.int()
