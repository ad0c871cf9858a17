"""Torch reference of convert.layout: any device, differentiable."""

import torch


def reference(input, source, target, *, batch=1):
    x = input.transpose(-3, -2) if source in ("BHSD", "HND") else input  # [..., S, H, D]
    if source in ("NHD", "HND") and target in ("BSHD", "BHSD"):
        x = x.unflatten(0, (batch, x.shape[0] // batch))
    elif source in ("BSHD", "BHSD") and target in ("NHD", "HND"):
        x = x.flatten(0, 1)
    x = x.transpose(-3, -2) if target in ("BHSD", "HND") else x
    return x.clone(memory_format=torch.contiguous_format)
