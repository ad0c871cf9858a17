"""Quantized formats with as few torch kernels as their definitions allow, bit-exact, without synchronization. The
arithmetic is that of ops/quantize/*.h: float32, each operation rounded."""

import functools
import math

import torch

from layerzero.backends.torch.common import constant, number
from layerzero.torch.references import reference_helpers

_INTEGERS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}
_FP8 = {
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
}
_GROUPS = {"mxfp8_e4m3": 32, "mxfp8_e5m2": 32, "mxfp4": 32, "nvfp4": 16}
_PACKED = ("int4", "uint4", "mxfp4", "nvfp4")
_LEAST = 2.0**-126
_FLT_MAX = torch.finfo(torch.float32).max


_f32 = functools.cache(reference_helpers("quant").f32)
_counts = reference_helpers("quant").block_counts


def _largest(dtype):
    return torch.finfo(_FP8[dtype]).max if dtype in _FP8 else 6.0


# Blocks are elements that share a scale. A tensor is viewed as [..., c_i, n_i / c_i, ...] for c_i scales along axis i.


def _split(x, counts):
    """Returns (x with its blocked axes split, the shape of scales that broadcasts to it, the axes within blocks)."""
    if all(c in (1, n) for c, n in zip(counts, x.shape, strict=True)):
        return x, list(counts), [i for i, (c, n) in enumerate(zip(counts, x.shape, strict=True)) if c != n]
    shape: list[int] = []
    scales: list[int] = []
    inner: list[int] = []
    for c, n in zip(counts, x.shape, strict=True):
        if c in (1, n):
            inner += [len(shape)] if c != n else []
            shape.append(n)
            scales.append(c)
        else:
            inner.append(len(shape) + 1)
            shape += [c, n // c]
            scales += [c, 1]
    return x.reshape(shape), scales, inner


def _spread(x, scale, axis=None):
    """Returns (x, scale) as views that broadcast; the scale's shape determines the blocks."""
    if scale.numel() == 1:
        return x, scale.reshape(1)
    if axis is not None and scale.ndim == 1 and x.ndim > 1:
        return x, scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    x, shape, _ = _split(x, scale.shape)
    return x, scale.reshape(shape)


def _wide(x):
    return x.float() if x.dtype == torch.float64 else x


def _finite(amax):
    """Replaces infinity by NaN."""
    return amax.fmod(math.inf)


def _amax(x, counts):
    """Returns the largest magnitude of each block as float32, NaN if a value is not finite."""
    if not x.numel():
        return x.new_zeros(counts, dtype=torch.float32)
    blocks, _, inner = _split(x, counts)
    if max(counts) == 1:
        return _finite(torch.linalg.vector_norm(x, math.inf, dtype=torch.float32)).reshape(counts)
    if not inner:  # an empty list would mean all axes
        return _finite(x.abs().float())
    return _finite(torch.linalg.vector_norm(blocks, math.inf, inner, keepdim=True, dtype=torch.float32)).reshape(counts)


def scale_values(scale):
    """Returns stored scales as float32; bytes are e8m0."""
    if scale.dtype == torch.uint8:
        scale = scale.view(torch.float8_e8m0fnu)
    return scale.float()


def _e8m0(amax, dtype, rule):
    largest = _largest(dtype)
    amax = amax.clamp(min=6 * _LEAST if dtype == "mxfp4" else _f32(1e-4))
    if rule == "floor":
        codes = ((amax.view(torch.int32) >> 23) - (math.frexp(largest)[1] - 1)).clamp_(min=0)
    else:  # rounded up to a power of two
        codes = (((amax * _f32(1 / largest)).view(torch.int32) + 0x7FFFFF) >> 23).clamp_(max=254)
    return codes.masked_fill_(amax.isnan(), 255).to(torch.uint8).view(torch.float8_e8m0fnu)


def _to_fp8(x, dtype):
    """Returns x, saturated, as FP8; the memory of x may be overwritten."""
    largest = torch.finfo(dtype).max
    return x.clamp_(-largest, largest).to(dtype)


def _made_scale(x, dtype, counts, rule, tensor_scale):
    amax = _amax(x, counts)
    if dtype == "nvfp4":
        return _to_fp8(amax.mul_(tensor_scale.reciprocal() * _f32(1 / 6)), torch.float8_e4m3fn)
    if dtype in _GROUPS:
        return _e8m0(amax, dtype, rule)
    if dtype in _FP8:
        return amax.clamp_(min=_f32(1e-4)).mul_(_f32(1 / _largest(dtype)))
    return amax.div_(number(float(_INTEGERS[dtype][1]), x.device)).clamp_(min=_LEAST)


def _pack(codes):
    """Packs pairs of 4-bit values into bytes, the even one in the low half; int8 sums wrap."""
    return torch.add(codes[..., ::2] & 15, codes[..., 1::2], alpha=16).view(torch.uint8)


def _integers(quotient, dtype, zero_point):
    """Returns the integers of a float32 tensor, which is overwritten. NaN becomes 0. A float zero point is exact."""
    low, high = _INTEGERS[dtype]
    quotient.round_()
    if zero_point is None:
        low = -high
    elif zero_point.is_floating_point():
        quotient.add_(zero_point)
    else:
        near = zero_point.float()  # and its rounding error beyond 2^24: such sums are exact where it matters
        quotient.add_(near).add_((zero_point - near.double()).float())
    return quotient.clamp_(low, high).to(torch.uint8 if dtype == "uint8" else torch.int8)


def _e2m1_bounds(device):
    """Returns the largest magnitude of each E2M1 code but the last; at ties the even code wins."""
    values = torch.empty(7, dtype=torch.float32, device=device)
    for i, bound in enumerate((0.25, 0.75 - 2**-24, 1.25, 1.75 - 2**-23, 2.5, 3.5 - 2**-22, 5.0)):
        values[i] = bound
    return values


def _e2m1(quotient):
    """Returns the unpacked E2M1 codes of a float32 tensor, which is overwritten. NaN has the code 0."""
    quotient.nan_to_num_(0.0)
    bounds = constant("e2m1", quotient.device, _e2m1_bounds)
    codes = torch.bucketize(quotient.abs().contiguous(), bounds, out_int32=True)
    return codes.add_(quotient.signbit(), alpha=8).to(torch.int8)


def _store(quotient, dtype, zero_point=None):
    """Returns the quantized values of float32 quotients of the input's shape, which are overwritten."""
    if dtype in _FP8:
        return _to_fp8(quotient, _FP8[dtype])
    return _integers(quotient, dtype, zero_point) if dtype in _INTEGERS else _e2m1(quotient)


def _codes(x, dtype, scale, axis=None, zero_point=None, tensor_scale=None):
    if not x.numel():
        shape = (*x.shape[:-1], x.shape[-1] // 2) if dtype in _PACKED else x.shape
        return x.new_empty(shape, dtype=_FP8.get(dtype, torch.int8 if dtype == "int8" else torch.uint8))
    blocks, spread = _spread(x, scale_values(scale), axis)
    if dtype == "nvfp4":
        if tensor_scale.numel() > 1:  # one per row: needs one more axis if groups split the last one
            tensor_scale = tensor_scale.reshape(*tensor_scale.shape, *[1] * (blocks.ndim - x.ndim))
        quotient = blocks * (spread * tensor_scale).reciprocal_().clamp_(max=_FLT_MAX)
    else:
        quotient = torch.div(blocks, spread)
    if zero_point is not None:
        zero_point = _spread(x, zero_point, axis)[1]
    codes = _store(quotient, dtype, zero_point).reshape(x.shape)
    return _pack(codes) if dtype in _PACKED else codes


def quantize(input, dtype, scale, axis, group_size, block_rows, zero_point, tensor_scale, scale_rule):
    x = _wide(input)
    if tensor_scale is not None and tensor_scale.numel() == 1:
        tensor_scale = tensor_scale.reshape(1)
    if scale is not None:
        return _codes(x, dtype, scale, axis, zero_point, tensor_scale)
    counts = _counts(x.shape, axis, block_rows, _GROUPS.get(dtype, group_size))
    made = _made_scale(x, dtype, counts, scale_rule, tensor_scale)
    return _codes(x, dtype, made, None, None, tensor_scale), made


def quantize_asymmetric(input, dtype, axis, group_size, block_rows):
    x = _wide(input)
    low_code, high_code = _INTEGERS[dtype]
    counts = _counts(x.shape, axis, block_rows, group_size)
    if not x.numel():
        low = high = x.new_zeros(counts, dtype=torch.float32)
    else:
        blocks, _, inner = _split(x, counts)
        if max(counts) == 1:
            low, high = torch.aminmax(x)
        elif len(inner) == 1:
            low, high = torch.aminmax(blocks, dim=inner[0], keepdim=True)
        else:
            low, high = (blocks.amin(inner), blocks.amax(inner)) if inner else (x, x)
        low, high = (_finite(t.reshape(counts).float()) for t in (low.clamp(max=0), high.clamp(min=0)))
    scale = (high - low).div_(number(float(high_code - low_code), x.device)).clamp_(min=_LEAST)
    zero = low.div(scale).round_().neg_().add_(low_code).clamp_(low_code, high_code)
    zero.nan_to_num_(0.0)
    return _codes(x, dtype, scale, None, zero), scale, zero.to(torch.int32)


def quantize_nvfp4(input, per_row):
    x = _wide(input)
    outer = _counts(x.shape, None, 1, x.shape[-1] if per_row else 0)
    if x.numel():
        finite = x.nan_to_num(0.0, 0.0, 0.0)
        amax = _amax(finite, outer)
    else:
        amax = x.new_zeros(outer, dtype=torch.float32)
    encoding = number(2688.0, x.device).div(amax).clamp_(max=_FLT_MAX).masked_fill_(amax == 0, 1.0)
    tensor_scale = encoding.reciprocal()
    scale = _amax(x, _counts(x.shape, None, 1, 16))
    scale = _to_fp8(scale.mul_(encoding * _f32(1 / 6)), torch.float8_e4m3fn)
    given = tensor_scale.reshape(1) if tensor_scale.numel() == 1 else tensor_scale
    return _codes(x, "nvfp4", scale, None, None, given), scale, tensor_scale


def _pairs(format, device):
    """Returns [256, 2] float32: the two values in a byte of a packed format."""
    code = torch.arange(16, dtype=torch.float32, device=device)
    if format == "int4":
        code = torch.where(code < 8, code, code - 16)
    elif format != "uint4":
        magnitude, sign = code % 8, torch.where(code < 8, 1.0, -1.0)
        exponent, half = (magnitude / 2).floor(), magnitude % 2
        code = sign * torch.where(exponent == 0, half / 2, (1 + half / 2) * torch.exp2(exponent - 1))
    return torch.stack([code.repeat(16), code.repeat_interleave(16)], -1)


def _numbers(values, format):
    """Returns the unscaled values; 8-bit integers as they are stored."""
    if format not in _PACKED:
        return values if format in _INTEGERS else values.float()
    kind = "e2m1" if format in _GROUPS else format
    table = constant((kind, "pairs"), values.device, lambda device: _pairs(kind, device))
    return torch.nn.functional.embedding(values.int(), table).flatten(-2)


def dequantize(values, scale, format, axis, zero_point, tensor_scale, dtype):
    numbers = _numbers(values, format)
    shape, target = numbers.shape, getattr(torch, dtype)
    if zero_point is not None and numbers.numel():
        numbers, point = _spread(numbers, zero_point, axis)
        numbers = numbers.int() - point if format in _PACKED else numbers - point
        numbers = numbers.reshape(shape)
    if not numbers.numel():
        return numbers.to(target)
    numbers, spread = _spread(numbers, scale_values(scale), axis)
    if tensor_scale is not None:
        scaled = (numbers * spread).reshape(shape)
        numbers, spread = scaled, tensor_scale.reshape(1) if tensor_scale.numel() == 1 else tensor_scale
    output = torch.empty(numbers.shape, dtype=target, device=numbers.device)
    return torch.mul(numbers, spread, out=output).reshape(shape)  # rounded once, on the store
