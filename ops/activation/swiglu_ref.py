"""Torch reference of activation.swiglu: any device, differentiable."""

import torch


def reference(gate, up):
    return torch.nn.functional.silu(gate) * up
