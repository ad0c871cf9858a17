"""Torch reference of mlp.linear.panels: any device."""

import torch


def reference(input, panels, bias=None):
    count, k, columns = panels.shape
    weight = panels.double()
    if panels.dtype == torch.bfloat16:
        weight = weight.reshape(count, k // 2, columns, 2).transpose(2, 3).reshape(count, k, columns)
    weight = weight.transpose(1, 2).reshape(count * columns, k)
    return torch.nn.functional.linear(input.double(), weight, None if bias is None else bias.double()).to(input.dtype)
