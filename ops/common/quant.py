"""Quantized formats in torch: scales of blocks, codes, packing. The arithmetic is that of ops/quantize/scaled.h."""

import torch

from . import small_float as _small

ELEMENTS = {
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "mxfp8_e4m3": "float8_e4m3fn",
    "mxfp8_e5m2": "float8_e5m2",
    "mxfp4": "float4_e2m1fn",
    "nvfp4": "float4_e2m1fn",
}
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float4_e2m1fn": 6.0}
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}
GROUPS = {"mxfp8_e4m3": 32, "mxfp8_e5m2": 32, "mxfp4": 32, "nvfp4": 16}
PACKED = ("int4", "uint4", "mxfp4", "nvfp4")
LEAST = 2.0**-126
FLT_MAX = torch.finfo(torch.float32).max


def f32(number):
    """A Python number rounded to float32."""
    return float(torch.tensor(number, dtype=torch.float32))


def block_counts(shape, axis=None, block_rows=1, group_size=0):
    """Number of scales along each axis."""
    if axis is not None:
        axis %= len(shape)
        return [n if i == axis else 1 for i, n in enumerate(shape)]
    if group_size == 0:
        return [1] * len(shape)
    counts = list(shape)
    counts[-1] //= group_size
    if block_rows != 1:
        counts[-2] //= block_rows
    return counts


def block_range(x, counts):
    """Smallest and largest value of each block, 0 included; NaN if a value is not finite."""
    if x.numel() == 0:
        return x.new_zeros(counts), x.new_zeros(counts)
    blocks = x.reshape([part for n, c in zip(x.shape, counts, strict=True) for part in (c, n // c)])
    inner = list(range(1, 2 * x.ndim, 2))
    finite = blocks.isfinite().to(torch.uint8).amin(inner).bool()
    low, high = blocks.amin(inner).clamp(max=0), blocks.amax(inner).clamp(min=0)
    return torch.where(finite, low, torch.nan), torch.where(finite, high, torch.nan)


def expand(scale, shape, axis=None):
    """A scale (or zero point) as a tensor that broadcasts to `shape`."""
    if scale.numel() == 1:
        return scale.reshape(())
    if axis is not None and scale.ndim == 1 and len(shape) > 1:
        axis %= len(shape)
        scale = scale.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    for i, n in enumerate(shape):
        if scale.shape[i] not in (1, n):
            scale = scale.repeat_interleave(n // scale.shape[i], i)
    return scale


def scale_values(scale):
    """Stored scales as float32; bytes are e8m0."""
    if scale.dtype == torch.uint8 or scale.dtype == torch.float8_e8m0fnu:
        return _small.decode(scale, "float8_e8m0fnu").float()
    return scale.float()


def f32_scale(amax, dtype):
    if dtype in RANGES:
        return torch.clamp(amax / amax.new_tensor(RANGES[dtype][1]), min=LEAST)
    return torch.clamp(amax, min=f32(1e-4)) * f32(1 / LARGEST[ELEMENTS[dtype]])


def e8m0_scale(amax, dtype, rule):
    """Bytes of power-of-two scales."""
    largest = LARGEST[ELEMENTS[dtype]]
    amax = torch.clamp(amax, min=6 * LEAST if dtype == "mxfp4" else f32(1e-4))
    bits = (amax * f32(1 / largest)).view(torch.int32)
    codes = ((bits >> 23) + (bits & 0x7FFFFF).ne(0)).clamp(max=254)
    if rule == "floor":
        exponent = torch.frexp(torch.tensor(largest))[1] - 1
        codes = ((amax.view(torch.int32) >> 23) - int(exponent)).clamp(min=0)
    return torch.where(amax.isnan(), 255, codes).to(torch.uint8)


def nvfp4_encoding(amax):
    """1 / tensor scale from the largest finite magnitude. torch may turn divisions by Python numbers into products."""
    return torch.where(amax == 0, 1.0, torch.clamp(amax.new_tensor(2688.0) / amax, max=FLT_MAX))


def nvfp4_scale(amax, encoding):
    return _small.encode(amax * (encoding * f32(1 / 6)), "float8_e4m3fn").view(torch.float8_e4m3fn)


def int_codes(quotient, dtype, zero_point=None):
    low, high = RANGES[dtype]
    codes = torch.round(quotient.double())
    if zero_point is None:
        low = -high
    else:
        codes = codes + zero_point
    return torch.where(quotient.isnan(), 0, codes.clamp(low, high)).to(torch.int32)


def codes(x, dtype, scale, zero_point=None, tensor_scale=None):
    """Codes of float32 values, not packed; scale, zero_point and tensor_scale broadcast."""
    if dtype in RANGES:
        return int_codes(x / scale, dtype, zero_point)
    if dtype == "nvfp4":
        quotient = x * torch.clamp(1.0 / (scale * tensor_scale), max=FLT_MAX)
    else:
        quotient = x / scale
    return _small.encode(quotient, ELEMENTS[dtype])


def store(codes, dtype):
    """Codes in the tensor that holds them."""
    if dtype == "int8":
        return codes.to(torch.int8)
    if dtype not in PACKED:
        codes = codes.to(torch.uint8)
        return codes if dtype == "uint8" else codes.view(getattr(torch, ELEMENTS[dtype]))
    codes = codes & 15
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)


def load(values, dtype):
    """Stored values as numbers: int32 for integers, otherwise float32."""
    if dtype in PACKED:
        values = torch.stack([values & 15, values >> 4], -1).flatten(-2)
    if dtype == "int4":
        return (values.int() ^ 8) - 8
    return values.int() if dtype in RANGES else _small.decode(values, ELEMENTS[dtype]).float()
