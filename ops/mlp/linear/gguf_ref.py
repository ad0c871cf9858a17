"""Torch reference of mlp.linear.gguf: any device; the weights dequantized without rounding, a product in float64."""

import torch

from ...dequantize import gguf_ref as _dequantize

_CODES = {"q4_0": 256, "q4_1": 256, "q8_0": 512, "q4_k": 256, "q6_k": 384}


def _half(data):
    """[..., 32 bytes] -> [..., 16] float64, whatever the alignment."""
    return data.clone(memory_format=torch.contiguous_format).view(torch.float16).double()


def _values(packed, n, k, format):
    """The weight that was passed to linear_gguf_prepack, dequantized: [n, k] float64."""
    groups, blocks, size = packed.shape[0], k // 32, _CODES[format]
    codes = packed[:, : blocks * size].reshape(groups, blocks, size)
    wide = codes[..., : 512 if format == "q8_0" else 256].unflatten(-1, (-1, 16, 4)).transpose(-3, -2)
    if format == "q8_0":
        wide = wide.flatten(-2)
    else:
        wide = torch.cat([(wide & 15).flatten(-2), (wide >> 4).flatten(-2)], -1)  # [groups, blocks, 16, 32]
    if format == "q6_k":
        high = codes[..., 256:].unflatten(-1, (2, 16, 4)).transpose(-3, -2)
        high = torch.stack([high >> 2 * f & 3 for f in range(4)], -2).flatten(-3)
        wide = wide | high << 4
    wide = wide.double()
    scales = packed[:, blocks * size :]
    if format in ("q4_0", "q8_0"):
        d = _half(scales[:, : blocks * 32].unflatten(-1, (blocks, 32)))
        result = d.unsqueeze(-1) * (wide - (8 if format == "q4_0" else 128))
    elif format == "q4_1":
        scales = scales[:, : blocks * 64].unflatten(-1, (blocks, 64))
        result = _half(scales[..., :32]).unsqueeze(-1) * wide + _half(scales[..., 32:]).unsqueeze(-1)
    else:
        wide = wide.unflatten(1, (blocks // 8, 8))
        size = 320 if format == "q4_k" else 288
        scales = scales[:, : blocks // 8 * size].unflatten(-1, (blocks // 8, size))
        d = _half(scales[..., :32]).unsqueeze(2)
        if format == "q4_k":
            small = scales[..., 64:].unflatten(-1, (8, 2, 16)).double()
            m = _half(scales[..., 32:64]).unsqueeze(2)
            scale, minimum = d * small[..., 0, :], m * small[..., 1, :]
            result = scale.unsqueeze(-1) * wide - minimum.unsqueeze(-1)
        else:
            small = scales[..., 32:].contiguous().view(torch.int8).unflatten(-1, (8, 2, 16)).double()
            scale = (d.unsqueeze(3) * small).transpose(-1, -2).unsqueeze(-1)  # [..., 16 rows, 2, 1]
            result = (scale * (wide - 32).unflatten(-1, (2, 16))).flatten(-2)
        result = result.flatten(1, 2)
    return result.transpose(1, 2).flatten(2).flatten(0, 1)[:n]


def _rounded(input):
    blocks = input.float().unflatten(-1, (-1, 32))
    amax = blocks.abs().amax(-1, keepdim=True)
    most = torch.full_like(amax, 127)  # torch computes a Python number divided by a tensor as a product with
    # its reciprocal
    inverse = torch.where(amax >= 2**-120, most / amax, torch.zeros_like(amax))
    rounded = (amax / most).double() * (blocks * inverse).round()
    finite = blocks.isfinite().all(-1, keepdim=True)
    return torch.where(finite, rounded, torch.full_like(rounded, torch.nan)).flatten(-2)


def reference(input, weight, format, bias=None, *, packed=None, activations="input"):
    k = input.shape[-1]
    if packed is None:
        weight = _dequantize.values(weight, k, format, torch.float64)
    else:
        weight = _values(packed, weight.shape[0], k, format)
    x = _rounded(input) if activations == "int8" and k else input
    bias = None if bias is None else bias.double()
    return torch.nn.functional.linear(x.double(), weight, bias).to(input.dtype)
