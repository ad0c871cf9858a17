"""Torch reference of convert: any device; float64 inside, so that a value is rounded once."""

import torch

from ..common import small_float as _small


def _round_once(values, dtype):
    """Float64 in a 16-bit format: through float32, rounded to odd so that the second rounding is right."""
    single = values.float()
    bits = single.view(torch.int32)
    away = single.double().abs() > values.abs()
    odd = torch.where(away, bits - 1, bits) | 1
    inexact = (single.double() != values) & values.isfinite() & single.isfinite()
    return torch.where(inexact, odd.view(torch.float32), single).to(dtype)


def reference(input, dtype, *, source="input", saturate=None):
    name = str(input.dtype).removeprefix("torch.") if source == "input" else source
    coded = name in _small.FORMATS or name == "float8_e8m0fnu"
    values = _small.decode(input, name) if coded else input
    if dtype in _small.FORMATS:
        codes = _small.encode(values, dtype, saturate is not False)
        return codes.view(getattr(torch, dtype)) if dtype in ("float8_e4m3fn", "float8_e5m2") else codes
    if dtype == "tf32":
        return _small.round_tf32(values.double()).float()
    narrow = dtype in ("float16", "bfloat16") and values.dtype == torch.float64
    return _round_once(values, getattr(torch, dtype)) if narrow else values.to(getattr(torch, dtype))
