"""Torch reference of activation.silu_and_mul: any device, differentiable."""

import torch


def reference(input):
    gate, up = input.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
