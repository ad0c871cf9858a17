"""Torch reference of norm.rms: any device, differentiable."""

import torch


def reference(input, weight=None, eps=1e-6, *, weight_offset=0.0):
    if weight is not None and weight_offset:
        weight = weight.to(torch.promote_types(weight.dtype, input.dtype)) + weight_offset
    output = torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)
    return output if weight is not None or not weight_offset else output * (1.0 + weight_offset)
