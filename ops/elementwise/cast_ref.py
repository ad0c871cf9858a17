"""Torch reference of elementwise.cast: any device, differentiable."""

import torch


def reference(input, dtype):
    target = getattr(torch, dtype)
    output = input.to(target)
    if input.dtype != torch.float64 or target.itemsize > 2:
        return output
    # torch rounds twice here, through float32: round to odd first, so that only the second rounding matters.
    x = input.detach()
    narrow = x.float()
    bits = narrow.view(torch.int32)
    odd = (bits - (narrow.double().abs() > x.abs()).int() | 1).view(torch.float32)
    once = torch.where((narrow.double() == x) | ~narrow.isfinite(), narrow, odd).to(target)
    moved = torch.where(output.isfinite() & once.isfinite(), output + (once - output).detach(), once)
    return torch.where(output == once, output, moved)
