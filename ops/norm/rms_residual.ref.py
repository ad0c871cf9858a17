"""Torch reference of norm.rms.residual: any device, differentiable."""

import torch


def reference(input, residual, weight=None, eps=1e-6, *, weight_offset=0.0):
    if weight is not None and weight_offset:
        weight = weight.to(torch.promote_types(weight.dtype, input.dtype)) + weight_offset
    total = input + residual
    output = torch.nn.functional.rms_norm(total, (input.shape[-1],), weight, eps)
    if weight is None and weight_offset:
        output = output * (1.0 + weight_offset)
    return output, total
