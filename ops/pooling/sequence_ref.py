"""Torch reference of pooling.sequence: any device, differentiable."""

import torch


def reference(input, mask=None, mode="mean", *, lengths=None):
    b, s, d = input.shape
    place = torch.arange(s, device=input.device)
    if lengths is not None:
        if lengths.device.type == "cpu" and lengths.numel() and (lengths.min() < 0 or lengths.max() > s):
            raise ValueError(f"lengths: wanted numbers from 0 to {s}, got {lengths.tolist()}")
        mask = place < lengths[:, None]
    valid = torch.ones(b, s, dtype=torch.bool, device=input.device) if mask is None else mask != 0
    if s == 0:
        return input.new_zeros(b, d)
    x = input if input.dtype == torch.float64 else input.float()
    some = valid.any(1, keepdim=True)
    if mode == "mean":
        output = torch.where(valid[..., None], x, 0).sum(1) / valid.sum(1, keepdim=True).clamp(min=1)
    elif mode == "max":
        output = torch.where(valid[..., None], x, -torch.inf).amax(1)
    else:
        at = torch.where(valid, place, s if mode == "first" else -1)
        at = (at.amin(1) if mode == "first" else at.amax(1)).clamp(0, s - 1)
        output = x[torch.arange(b, device=input.device), at]
    return torch.where(some, output, 0).to(input.dtype)
