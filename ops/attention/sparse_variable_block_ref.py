"""Torch reference of attention.sparse.variable_block: any device, differentiable; the map expanded to a mask."""

import torch

from ..common import attention as _attention


def reference(q, k, v, block_mask, row_sizes, col_sizes, sm_scale=None, *, return_lse=False):
    group = q.shape[1] // max(k.shape[1], 1)
    masks = [
        block[_blocks(rows, q.shape[0], "row_sizes")][:, _blocks(cols, k.shape[0], "col_sizes")]
        for block, rows, cols in zip(block_mask, row_sizes, col_sizes, strict=True)
    ]
    mask = torch.stack(masks).repeat_interleave(group, 0) if masks else block_mask.new_zeros(0, q.shape[0], k.shape[0])
    result = _attention.dense(*(t.unsqueeze(0) for t in (q, k, v)), mask, causal=False, scale=sm_scale, lse=return_lse)
    return (result[0].squeeze(0), result[1].squeeze(0).transpose(0, 1)) if return_lse else result.squeeze(0)


def _blocks(sizes, items, name):
    """The block of each item."""
    values = sizes.tolist()
    if min(values, default=0) < 0 or sum(values) != items:
        raise ValueError(f"{name}: wanted sizes that add up to {items}, got {values}")
    return torch.repeat_interleave(torch.arange(len(values), device=sizes.device), sizes.long())
