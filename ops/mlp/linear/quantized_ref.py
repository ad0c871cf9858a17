"""Torch reference of mlp.linear.quantized: any device; weights dequantized, then a product in float32 or float64."""

import torch

from ...dequantize import scaled_ref as _dequantize


def _unpack(packed):
    """The weight that was passed to linear_prepack."""
    n, size = packed.shape
    codes = torch.stack([packed & 15, packed >> 4], 1).reshape(n, 2, size // 16, 16).transpose(1, 2).flatten(1)
    return codes[:, ::2] | codes[:, 1::2] << 4


def reference(input, weight, weight_scale, format, bias=None, *, zero_point=None, tensor_scale=None, packed=None):
    weight = weight if packed is None else _unpack(packed)
    weight = _dequantize.reference(weight, weight_scale, format, zero_point=zero_point, tensor_scale=tensor_scale)
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    bias = None if bias is None else bias.to(wide)
    return torch.nn.functional.linear(input.to(wide), weight.to(wide), bias).to(input.dtype)
