"""Torch reference of norm.layer.residual: any device, differentiable."""

import functools

import torch


def reference(input, residual, normalized_shape, weight=None, bias=None, eps=1e-5, *, weight_offset=0.0):
    total = input + residual
    given = [t.dtype for t in (total, weight, bias) if t is not None]
    given += [torch.float32] if weight_offset else []  # its sum with the weight is not rounded
    wide = functools.reduce(torch.promote_types, given)  # torch's function takes few combinations of dtypes
    weight, bias = (t if t is None else t.to(wide) for t in (weight, bias))
    if weight_offset:
        one = torch.ones(normalized_shape, dtype=wide, device=total.device)
        weight = (one if weight is None else weight) + weight_offset
    output = torch.nn.functional.layer_norm(total.to(wide), (normalized_shape,), weight, bias, eps)
    return output.to(total.dtype), total
