"""Torch reference of dequantize: any device; float32 arithmetic as in the definition."""

import torch

from ..common import quant as _quant


def reference(values, scale, format, *, axis=None, zero_point=None, tensor_scale=None, dtype="float32"):
    numbers = _quant.load(values, format)
    shape = numbers.shape
    if zero_point is not None:
        numbers = numbers.long() - _quant.expand(zero_point, shape, axis)
    output = numbers.float() * _quant.expand(_quant.scale_values(scale), shape, axis)
    if tensor_scale is not None:
        output = output * (tensor_scale.reshape(()) if tensor_scale.numel() == 1 else tensor_scale)
    return output.to(getattr(torch, dtype))
