"""Linear layers over quantized and packed weights, and feed-forward blocks, with torch's matrix products."""

import torch
from torch.nn import functional as F

from layerzero import _layerzero
from layerzero.backends.torch.activations import FUNCTIONS, gate_up, split
from layerzero.backends.torch.expressions import product
from layerzero.backends.torch.quantize import dequantize
from layerzero.torch.references import reference_function

_OPS = _layerzero.ops


def _unpack(packed):
    """Returns the weight that linear_prepack packed."""
    n, size = packed.shape
    codes = torch.stack([packed & 15, packed >> 4], 1).reshape(n, 2, size // 16, 16).transpose(1, 2).flatten(1)
    return codes[:, ::2] | codes[:, 1::2] << 4


def linear_quantized(input, weight, weight_scale, format, bias, zero_point, tensor_scale, packed):
    stored = weight if packed is None else _unpack(packed)
    if not input.is_cuda:
        dtype = str(input.dtype).removeprefix("torch.")
        return F.linear(input, dequantize(stored, weight_scale, format, None, zero_point, tensor_scale, dtype), bias)
    dtype = _dtype_of_values(input)
    values = _OPS["dequantize"](
        stored, weight_scale, format, zero_point=zero_point, tensor_scale=tensor_scale, dtype=dtype
    )
    return _product(input, values, bias)


def linear_gguf(input, weight, format, bias, packed, activations):
    """On CUDA the values of the blocks are made by one launch; where kernels read blocks themselves, rows are few."""
    dtype, k = _dtype_of_values(input), input.shape[-1]
    function = _OPS["dequantize_gguf"] if input.is_cuda else reference_function("dequantize_gguf")
    return _product(input, function(weight, k, format=format, dtype=dtype), bias)


def _dtype_of_values(input):
    """That of the input; float32 for float16, which does not hold every product of a scale and a code."""
    return "float32" if input.dtype == torch.float16 else str(input.dtype).removeprefix("torch.")


def _product(input, values, bias):
    if values.dtype == input.dtype:
        return F.linear(input, values, bias)
    bias = None if bias is None else bias.to(values.dtype)
    return F.linear(input.to(values.dtype), values, bias).to(input.dtype)


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


def _wide_linear(input, weight, bias):
    """F.linear (rows, n) in float32 of rows in float16."""
    output = product(input[None], weight.t()[None])[0]
    return output if bias is None else output.add_(bias)


def fused_mlp_half(input, gate_weight, down_weight, up_weight, gate_bias, up_bias, down_bias, *rest):
    """fused_mlp in float16. Hidden rows are float32, and float16 times a power of two of each row for the second product:
    their largest value is from 2^14 to 2^15, so none overflows, and those that matter have 11 bits."""
    x = input.reshape(input.shape[:-1].numel(), input.shape[-1])
    gate = _wide_linear(x, gate_weight, gate_bias)
    up = None if up_weight is None else _wide_linear(x, up_weight, up_bias)
    rows = hidden(gate, up, down_weight.shape[1], *rest)
    top = F.pad(rows.abs().nan_to_num_(0.0, 0.0), (0, 1)).amax(-1, keepdim=True)  # of no columns: 0
    unit = torch.ldexp(torch.ones_like(top), (torch.frexp(top).exponent - 15).clamp_(min=-100))
    output = _wide_linear((rows / unit).to(input.dtype), down_weight, None).mul_(unit)
    output = output if down_bias is None else output.add_(down_bias)
    return output.to(input.dtype).reshape(*input.shape[:-1], down_weight.shape[0])
