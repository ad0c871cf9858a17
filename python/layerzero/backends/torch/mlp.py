"""Linear layers over quantized and packed weights, and feed-forward blocks, with torch's matrix products."""

import torch
from torch.nn import functional as F

from layerzero.backends.torch.activations import FUNCTIONS, gate_up, split
from layerzero.backends.torch.quantize import dequantize
from layerzero.torch.references import reference_function


def _unpack(packed):
    """Returns the weight that linear_prepack packed."""
    n, size = packed.shape
    codes = torch.stack([packed & 15, packed >> 4], 1).reshape(n, 2, size // 16, 16).transpose(1, 2).flatten(1)
    return codes[:, ::2] | codes[:, 1::2] << 4


def linear_quantized(input, weight, weight_scale, format, bias, zero_point, tensor_scale, packed):
    stored = weight if packed is None else _unpack(packed)
    dtype = str(input.dtype).removeprefix("torch.")
    return F.linear(input, dequantize(stored, weight_scale, format, None, zero_point, tensor_scale, dtype), bias)


def linear_gguf(input, weight, format, bias, packed, activations):
    dtype = str(input.dtype).removeprefix("torch.")
    values = reference_function("dequantize_gguf")(weight, input.shape[-1], format=format, dtype=dtype)
    return F.linear(input, values, bias)


def linear_panels(input, panels, bias):
    count, k, columns = panels.shape
    weight = panels
    if panels.dtype == torch.bfloat16:  # pairs of rows
        weight = weight.reshape(count, k // 2, columns, 2).transpose(2, 3)
    weight = weight.reshape(count, k, columns).transpose(1, 2).reshape(count * columns, k)
    return F.linear(input, weight, bias)


def head_linear(input, weight, dtype):
    """A batched product with one batch per head."""
    target, (h, n, k) = getattr(torch, dtype), weight.shape
    x = input.reshape(input.shape[:-2].numel(), h, k).transpose(0, 1)
    shape = (*input.shape[:-1], n)
    if input.dtype == target or input.dtype.itemsize > target.itemsize:
        output = torch.bmm(x, weight.transpose(1, 2)).to(target)
    elif input.is_cuda and target == torch.float32 and not torch.is_grad_enabled():
        output = torch.bmm(x, weight.transpose(1, 2), out_dtype=target)
    else:
        output = torch.bmm(x.float(), weight.transpose(1, 2).float()).to(target)
    return output.transpose(0, 1).reshape(shape)


def hidden(gate, up, n, activation, limit, alpha, up_offset, interleaved):
    """Returns the hidden rows between the two products, from the results of the first."""
    if up is None and gate.shape[-1] != n:
        gate, up = split(gate, interleaved)
    if up is not None:
        return gate_up(gate, up, activation, limit, alpha, up_offset)
    if limit is not None:
        gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(alpha * gate) if alpha != 1.0 else FUNCTIONS[activation](gate)


def fused_mlp(input, gate_weight, down_weight, up_weight, gate_bias, up_bias, down_bias, *rest):
    """*rest: activation, limit, alpha, up_offset, interleaved."""
    gate = F.linear(input, gate_weight, gate_bias)
    up = None if up_weight is None else F.linear(input, up_weight, up_bias)
    return F.linear(hidden(gate, up, down_weight.shape[1], *rest), down_weight, down_bias)
