"""RMSNorm and LayerNorm in Triton: a block for each row, which is read once and stays in registers; sums in float32."""

import torch
import triton
import triton.language as tl

from layerzero.backends.triton.launching import Kernel, are_aligned, power_of_two, warps_of


@triton.jit
def _row(input, residual, total, places, inside, has_residual: tl.constexpr):
    """A row of the input in float32; with a residual their sum, as `total` holds it."""
    x = tl.load(input + places, mask=inside, other=0.0).to(tl.float32)
    if has_residual:
        x += tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(total.dtype.element_ty)
        tl.store(total + places, rounded, mask=inside)
        x = rounded.to(tl.float32)
    return x


@triton.jit
def _gain(values, weight, columns, inside, offset, has_weight: tl.constexpr):
    if has_weight:
        values *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32) + offset
    else:
        values *= 1.0 + offset
    return values


def _rms_norm(
    input,
    residual,
    weight,
    output,
    total,
    eps: tl.float32,
    offset: tl.float32,
    width: tl.constexpr,
    block: tl.constexpr,
    has_residual: tl.constexpr,
    has_weight: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    inside = columns < width
    x = _row(input, residual, total, first + columns, inside, has_residual)
    y = x / tl.sqrt(tl.sum(x * x, 0) / width + eps)
    y = _gain(y, weight, columns, inside, offset, has_weight)
    tl.store(output + first + columns, y.to(output.dtype.element_ty), mask=inside)


def _layer_norm(
    input,
    residual,
    weight,
    bias,
    output,
    total,
    eps: tl.float32,
    offset: tl.float32,
    width: tl.constexpr,
    block: tl.constexpr,
    has_residual: tl.constexpr,
    has_weight: tl.constexpr,
    has_bias: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, block)
    inside = columns < width
    x = _row(input, residual, total, first + columns, inside, has_residual)
    centred = tl.where(inside, x - tl.sum(x, 0) / width, 0.0)
    y = centred / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    y = _gain(y, weight, columns, inside, offset, has_weight)
    if has_bias:
        y += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + first + columns, y.to(output.dtype.element_ty), mask=inside)


_RMS_NORM, _LAYER_NORM = Kernel(_rms_norm), Kernel(_layer_norm)


def _normed(kernel, input, residual, parameters, eps, weight_offset, **given):
    """Returns output and sum (None without a residual) of contiguous tensors; `parameters` are weight, or weight and bias."""
    output, total = torch.empty_like(input), None if residual is None else torch.empty_like(input)
    if input.numel():
        width = input.shape[-1]
        block = power_of_two(width)
        kernel.run(
            input.numel() // width,
            are_aligned(width, input, residual, *parameters),
            *(input, residual, *parameters, output, total, float(eps), float(weight_offset or 0.0)),
            warps=warps_of(block),
            width=width,
            block=block,
            has_residual=residual is not None,
            **given,
        )
    return output, total


def rms_norm(input, weight, eps, weight_offset=None):
    return fused_add_rms_norm(input, None, weight, eps, weight_offset)[0]


def fused_add_rms_norm(input, residual, weight, eps, weight_offset=None):
    return _normed(_RMS_NORM, input, residual, (weight,), eps, weight_offset, has_weight=weight is not None)


def layer_norm(input, normalized_shape, weight, bias, eps, weight_offset=None):
    return fused_add_layer_norm(input, None, normalized_shape, weight, bias, eps, weight_offset)[0]


def fused_add_layer_norm(input, residual, normalized_shape, weight, bias, eps, weight_offset=None):
    given = {"has_weight": weight is not None, "has_bias": bias is not None}
    return _normed(_LAYER_NORM, input, residual, (weight, bias), eps, weight_offset, **given)
