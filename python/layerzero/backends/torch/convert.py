"""Conversions of dtypes and of scale layouts, and sums in a fixed order."""

import torch

from layerzero.backends.torch.common import rounded


def to_fp8(input, dtype, source, saturate):
    """Converts floats of at most 32 bits to FP8, rounded once; saturated, infinities too, unless saturate is False."""
    target = getattr(torch, dtype)
    if saturate is False:
        if target == torch.float8_e4m3fn:  # e4m3fn has no infinity: larger values become NaN
            input = input.masked_fill(input.abs() > 464.0, torch.nan)
        return input.to(target)
    largest = torch.finfo(target).max
    return input.clamp(-largest, largest).to(target)


def from_fp8(input, dtype, source, saturate):
    return input.to(getattr(torch, dtype))


def add_scaled(input, other, function, scale):
    """Returns input + scale * other, or input - scale * other."""
    return (torch.add if function == "add" else torch.sub)(input, other, alpha=scale)


def reduce_tree(input, dtype):
    """Sums adjacent pairs first, in float32; the last of an odd number is carried to the next round."""
    level, target = input, input.dtype if dtype is None else getattr(torch, dtype)
    if level.shape[0] == 0:
        return input.new_zeros(input.shape[1:], dtype=target)
    if level.shape[0] == 1:
        return level[0].to(target, copy=True)
    while level.shape[0] > 2:
        pairs = level.shape[0] // 2 * 2
        sums = level[0:pairs:2].float() + level[1:pairs:2]
        level = torch.cat([sums, level[pairs:]]) if pairs < level.shape[0] else sums
    return rounded(torch.add, level[0].float(), level[1], target)


def swizzle_scales(scale):
    """Reorders scales into tiles of 128 rows and 4 columns; rows of a tile are ordered by their remainder modulo 32."""
    *lead, rows, columns = scale.shape
    codes = scale.view(torch.uint8)
    if rows % 128 or columns % 4:
        codes = torch.nn.functional.pad(codes, (0, -columns % 4, 0, -rows % 128))
    tall, wide = -(-rows // 128), -(-columns // 4)
    tiles = codes.reshape(*lead, tall, 4, 32, wide, 4).transpose(-4, -2)
    return tiles.reshape(*lead, tall * wide * 512).view(scale.dtype)


def unswizzle_scales(scale, rows, columns):
    lead, tall, wide = scale.shape[:-1], -(-rows // 128), -(-columns // 4)
    tiles = scale.view(torch.uint8).reshape(*lead, tall, wide, 32, 4, 4)
    codes = tiles.transpose(-4, -2).reshape(*lead, tall * 128, wide * 4)
    if rows % 128 or columns % 4:
        codes = codes[..., :rows, :columns].contiguous()
    return codes.view(scale.dtype)
