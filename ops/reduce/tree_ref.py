"""Torch reference of reduce.tree: any device, differentiable."""

import torch

from ..elementwise.cast_ref import reference as _cast


def reference(input, *, dtype=None):
    level = input if input.dtype == torch.float64 else input.float()
    while level.shape[0] > 1:
        pairs = level.shape[0] // 2 * 2
        level = torch.cat([level[0:pairs:2] + level[1:pairs:2], level[pairs:]])
    total = level[0] if level.shape[0] else level.new_zeros(level.shape[1:])
    return _cast(total, dtype or str(input.dtype).removeprefix("torch."))
