"""Torch reference of mlp.linear.gguf.prepack: any device."""

import torch

_SCALES = {"q4_0": ((0, 2),), "q8_0": ((0, 2),), "q4_1": ((0, 2), (2, 4))}  # bytes of d, and of m


def _rows(groups):
    """[groups, 16, blocks, parts, 4] -> [groups, blocks, parts, 16, 4], as bytes of one block after the other."""
    return groups.permute(0, 2, 3, 1, 4).flatten(2)


def _nibbles(codes):
    """Codes [groups, 16, blocks, 32] with 4 bits, two in a byte: value i low, value i + 16 high."""
    return codes[..., :16] | codes[..., 16:] << 4


def _six(blocks):
    """Codes [groups, 16, 8 blocks of 32 for each of 256] of q6_k."""
    low = blocks[..., :128].unflatten(-1, (2, 64))
    low = torch.cat([low & 15, low >> 4], -1)
    high = blocks[..., 128:192].unflatten(-1, (2, 32))
    high = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    return (low | high << 4).flatten(-2).unflatten(-1, (8, 32))


def _high_bits(codes):
    """Bits 4 and 5 of codes [..., 32] as 2 x 4 bytes: bits 2 f of byte j of part h are those of value 16 h + 4 f + j."""
    parts = (codes >> 4).unflatten(-1, (2, 4, 4))
    return sum(parts[..., f, :] << 2 * f for f in range(4))


def _k_scales(blocks):
    packed = blocks[..., 4:16]
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat([low & 63, (high & 15) | (low >> 6 << 4)], -1)
    minima = torch.cat([middle & 63, (high >> 4) | (middle >> 6 << 4)], -1)
    halves = torch.stack([blocks[..., 0:2], blocks[..., 2:4]], 3).permute(0, 2, 3, 1, 4).flatten(2)
    small = torch.stack([scales, minima], -1).permute(0, 2, 3, 4, 1).flatten(2)
    return torch.cat([halves, small], -1).flatten(1)


def _q6_scales(blocks):
    halves = blocks[..., 208:210].permute(0, 2, 1, 3).flatten(2)
    small = blocks[..., 192:208].permute(0, 2, 3, 1).flatten(2)
    return torch.cat([halves, small], -1).flatten(1)


def reference(weight, k, format):
    values, size = {"q4_k": (256, 144), "q6_k": (256, 210), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20)}[
        format
    ]
    n, groups = weight.shape[0], (weight.shape[0] + 15) // 16
    blocks = weight.new_zeros(groups * 16, k // values, size)
    blocks[:n] = weight.reshape(n, k // values, size)
    if format == "q8_0":
        blocks[:n, :, 2:] ^= 128
    blocks = blocks.unflatten(0, (groups, 16))
    if format == "q8_0":
        codes = _rows(blocks[..., 2:].unflatten(-1, (8, 4))).flatten(1)
    elif format in ("q4_0", "q4_1"):
        codes = _rows(blocks[..., -16:].unflatten(-1, (4, 4))).flatten(1)
    elif format == "q4_k":
        wide = blocks[..., -128:].unflatten(-1, (4, 32))
        wide = torch.stack([wide & 15, wide >> 4], -2).flatten(-3, -2).flatten(2, 3)
        codes = _rows(_nibbles(wide).unflatten(-1, (4, 4))).flatten(1)
    else:
        wide = _six(blocks).flatten(2, 3)
        low = _rows(_nibbles(wide & 15).unflatten(-1, (4, 4)))
        codes = torch.cat([low, _rows(_high_bits(wide))], -1).flatten(1)
    if format == "q4_k":
        scales = _k_scales(blocks)
    elif format == "q6_k":
        scales = _q6_scales(blocks)
    else:
        halves = [blocks[..., begin:end].permute(0, 2, 1, 3).flatten(2) for begin, end in _SCALES[format]]
        scales = torch.cat(halves, -1).flatten(1)
    packed = torch.cat([codes, scales], -1)
    return torch.nn.functional.pad(packed, (0, -packed.shape[1] % 64))
