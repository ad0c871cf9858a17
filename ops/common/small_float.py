"""Small float formats in torch, with integers and float64 only: the same on every device and in every version of torch.

A format is (exponent bits, mantissa bits, bias, largest code, code of infinity, code of NaN, without negative zero).
"""

import torch

FORMATS = {
    "float8_e4m3fn": (4, 3, 7, 0x7E, None, 0x7F, False),
    "float8_e5m2": (5, 2, 15, 0x7B, 0x7C, 0x7F, False),
    "float8_e4m3fnuz": (4, 3, 8, 0x7F, None, 0x80, True),
    "float8_e5m2fnuz": (5, 2, 16, 0x7F, None, 0x80, True),
    "float6_e2m3fn": (2, 3, 1, 0x1F, None, None, False),
    "float6_e3m2fn": (3, 2, 3, 0x1F, None, None, False),
    "float4_e2m1fn": (2, 1, 1, 0x07, None, None, False),
}


def power_of_two(exponent):
    """2^exponent as float64, exactly, for exponents of normal numbers."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def round_to(magnitude, mantissa, least):
    """Non-negative float64 rounded to `mantissa` bits: (exponent, multiple of 2^(exponent - mantissa))."""
    exponent = torch.where(magnitude == 0, least, torch.frexp(magnitude)[1] - 1).clamp(min=least)
    return exponent, torch.round(magnitude * power_of_two(mantissa - exponent))


def decode(codes, name):
    """Codes as float64."""
    codes = codes.view(torch.uint8).long()
    if name == "float8_e8m0fnu":
        return torch.where(codes == 255, torch.nan, power_of_two(codes - 127))
    exponent, mantissa, bias, largest, infinity, nan, fnuz = FORMATS[name]
    sign = 1 << (exponent + mantissa)
    magnitude = codes & (sign - 1)
    e, m = magnitude >> mantissa, magnitude & ((1 << mantissa) - 1)
    scale = power_of_two(e.clamp(min=1) - bias - mantissa)
    value = torch.where(e == 0, m, m + (1 << mantissa)).double() * scale
    if infinity is not None:
        value = torch.where(magnitude == infinity, torch.inf, value)
    if nan is not None:
        is_nan = codes == nan if fnuz else (magnitude > largest) & (magnitude != (infinity or -1))
        value = torch.where(is_nan, torch.nan, value)
    return torch.where(codes & sign != 0, -value, value)


def encode(values, name, saturate=True):
    """Floats as uint8 codes, rounded to nearest even."""
    exponent, mantissa, bias, largest, infinity, nan, fnuz = FORMATS[name]
    sign = 1 << (exponent + mantissa)
    values = values.double()
    top = float(decode(torch.tensor([largest], dtype=torch.uint8), name))
    magnitude = values.abs().nan_to_num(nan=0.0, posinf=2 * top).clamp(max=2 * top)
    e, count = round_to(magnitude, mantissa, 1 - bias)
    codes = ((e.long() - 1 + bias) << mantissa) + count.long()
    beyond = infinity if infinity is not None else nan
    over = largest if saturate or beyond is None else beyond
    codes = torch.where(codes > largest, over, codes)
    signed = torch.where(torch.signbit(values) & ~(fnuz & ((codes == 0) | (codes == nan))), codes | sign, codes)
    if nan is None:
        signed = torch.where(values.isnan(), 0, signed)
    else:
        signed = torch.where(values.isnan(), nan, signed)
    return signed.to(torch.uint8)


def round_tf32(values):
    """Float64 rounded to 8 bits of exponent and 10 of mantissa."""
    exponent, count = round_to(values.abs().nan_to_num(nan=0.0, posinf=0.0), 10, -126)
    rounded = torch.copysign(count * power_of_two(exponent - 10), values)
    return torch.where(values.isfinite(), rounded, values)
