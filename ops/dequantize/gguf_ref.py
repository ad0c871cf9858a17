"""Torch reference of dequantize.gguf: any device, float32 arithmetic; `values` can return the exact ones too."""

import torch

_BLOCKS = {  # values, bytes
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
}


def _half(blocks, at, wide):
    # Two bytes as one float16, whatever the blocks' alignment.
    return blocks[..., at : at + 2].clone(memory_format=torch.contiguous_format).view(torch.float16).to(wide)


def _signed(codes, wide):
    return codes.contiguous().view(torch.int8).to(wide)


def _bits(data):
    """The bits of each byte from the lowest on."""
    return (data.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=data.device) & 1).flatten(-2)


def _small(blocks, format, wide):
    d = _half(blocks, 0, wide)
    if format == "q8_0":
        return d * _signed(blocks[..., 2:], wide)
    start = 4 if format in ("q4_1", "q5_1") else 2
    codes = blocks[..., -16:]
    codes = torch.cat([codes & 15, codes >> 4], -1)
    if format in ("q5_0", "q5_1"):
        codes = codes | _bits(blocks[..., start : start + 4]) << 4
    if start == 4:
        return d * codes.to(wide) + _half(blocks, 2, wide)
    return d * (codes.to(wide) - (16 if format == "q5_0" else 8))


def _k(blocks, format, wide):
    packed = blocks[..., 4:16]
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat([low & 63, (high & 15) | (low >> 6 << 4)], -1)
    minima = torch.cat([middle & 63, (high >> 4) | (middle >> 6 << 4)], -1)
    codes = blocks[..., -128:].unflatten(-1, (4, 32))
    codes = torch.stack([codes & 15, codes >> 4], -2).flatten(-3, -2)  # [..., 8, 32]
    if format == "q5_k":
        codes = codes | _bits(blocks[..., 16:48]).unflatten(-1, (32, 8)).transpose(-1, -2) << 4
    scale, minimum = _half(blocks, 0, wide) * scales.to(wide), _half(blocks, 2, wide) * minima.to(wide)
    return (scale.unsqueeze(-1) * codes.to(wide) - minimum.unsqueeze(-1)).flatten(-2)


def _q6(blocks, wide):
    low = blocks[..., :128].unflatten(-1, (2, 64))
    low = torch.cat([low & 15, low >> 4], -1)  # [..., 2, 128]
    high = blocks[..., 128:192].unflatten(-1, (2, 32))
    high = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    codes = ((low | high << 4).to(wide) - 32).flatten(-2).unflatten(-1, (16, 16))
    scale = _half(blocks, 208, wide) * _signed(blocks[..., 192:208], wide)
    return (scale.unsqueeze(-1) * codes).flatten(-2)


def values(data, columns, format, wide):
    """[n, columns] of `wide`: in float32 with GGML's roundings, in float64 exact."""
    n, (count, size) = data.shape[0], _BLOCKS[format]
    blocks = data.reshape(n, columns // count, size)
    if format == "q6_k":
        return _q6(blocks, wide).reshape(n, columns)
    return (_k if count == 256 else _small)(blocks, format, wide).reshape(n, columns)


def reference(data, columns, *, format, dtype="float32"):
    return values(data, columns, format, torch.float32).to(getattr(torch, dtype))
