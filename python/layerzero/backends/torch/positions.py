"""Rotary embedding and distance biases with torch's kernels."""

import torch
from torch.nn import functional as F

from layerzero.backends.torch.common import rounded
from layerzero.errors import KernelExecutionError


def table_of(table, position_ids, columns, interleaved, head_axis):
    if position_ids is not None:
        table = F.embedding(position_ids, table)
    if table.dim() == 2:
        table = table[None]
    if table.shape[-1] != columns:  # one column per pair
        table = table.repeat_interleave(2, -1) if interleaved else torch.cat((table, table), -1)
    return table.unsqueeze(head_axis)


def check_positions(operation, position_ids, rows):
    """Refuses an id outside the tables on CPUs. On CUDA nothing is read: there torch's own check stops the kernel."""
    if position_ids is None or position_ids.is_cuda or not position_ids.numel():
        return
    low, high = (int(t) for t in position_ids.aminmax())
    if low < 0 or high >= rows:
        raise KernelExecutionError(f"{operation}: position_ids", f"numbers from 0 to {rows - 1}", f"{low} to {high}")


def swapped_of(x, interleaved):
    """Returns each column's partner, negated for the first of a pair."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rope(input, cos, sin, interleaved, position_ids, inverse, rotary_dim, layout):
    d, wide = input.shape[-1], torch.promote_types(input.dtype, torch.float32)
    columns = rotary_dim
    check_positions("rope", position_ids, cos.shape[0])
    head_axis = 1 if layout == "BHSD" else 2
    cos, sin = (table_of(t.to(wide), position_ids, columns, interleaved, head_axis) for t in (cos, sin))
    x = input if columns == d else input[..., :columns]
    output = torch.addcmul(x * cos, swapped_of(x, interleaved).to(wide), sin, value=-1 if inverse else 1).to(
        input.dtype
    )
    return output if columns == d else torch.cat((output, input[..., columns:]), -1)


def alibi(slopes, s_q, s_kv, causal):
    wide = torch.promote_types(slopes.dtype, torch.float32 if max(s_q, s_kv) < 2**24 else torch.float64)
    row, column = (torch.arange(n, dtype=wide, device=slopes.device) for n in (s_q, s_kv))
    distance = (row + (s_kv - s_q))[:, None] - column
    bias = rounded(torch.mul, distance.abs(), -slopes.to(wide)[:, None, None], slopes.dtype)
    return bias.masked_fill_(distance < 0, -torch.inf) if causal else bias
