"""Torch reference of sampling.softmax: any device, differentiable."""

import torch


def reference(logits, temperature=1.0):
    x = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1.0:
        x = (x - x.detach().amax(-1, keepdim=True)) / temperature if x.numel() else x
    return torch.softmax(x, dim=-1).float()
