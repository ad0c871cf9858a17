"""Torch reference of mlp.linear.panels.prepack: any device."""

import torch


def reference(weight):
    n, k = weight.shape
    panels = weight.reshape(n // 64, 64, k).transpose(1, 2)
    if weight.dtype == torch.bfloat16:
        panels = panels.reshape(n // 64, k // 2, 2, 64).transpose(2, 3).reshape(n // 64, k, 64)
    return panels.contiguous()
