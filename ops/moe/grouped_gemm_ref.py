"""Torch reference of moe.grouped_gemm: any device, differentiable."""

import torch
from torch.nn import functional as F


def reference(input, weight, offsets, bias=None):
    bounds = offsets.tolist()
    if bounds != sorted(bounds) or bounds[0] < 0 or bounds[-1] > input.shape[0]:
        raise ValueError(f"offsets: wanted numbers from 0 to {input.shape[0]} that do not decrease, got {bounds}")
    input = input.contiguous()  # see mlp/linear_ref.py
    parts = [
        F.linear(input[begin:end], weight[e], None if bias is None else bias[e])
        for e, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False))
    ]
    empty = input.new_zeros(input.shape[0], weight.shape[1])
    return torch.cat([empty[: bounds[0]], *parts, empty[bounds[-1] :]])
