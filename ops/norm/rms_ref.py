"""Torch reference of norm.rms: any device, differentiable."""

import torch


def reference(input, weight=None, eps=1e-6, *, weight_offset=0.0, normalized_shape=None):  # the last axis, if given
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    gain = None if weight is None else weight.to(torch.promote_types(x.dtype, weight.dtype)) + weight_offset
    output = torch.nn.functional.rms_norm(x, (x.shape[-1],), None, eps)
    return (output * ((1.0 + weight_offset) if gain is None else gain)).to(input.dtype)
