"""Activation functions of one and two tensors, with torch's kernels."""

from typing import Any

import torch
from torch.nn import functional as F


def _gelu(x):
    """Corrects infinities: torch's vectorized CPU kernel returns NaN for them, its CUDA kernel does not."""
    return F.gelu(x) if x.is_cuda else torch.where(x == float("inf"), x, F.gelu(x))


def _gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def _relu2(x):
    return F.relu(x).square()


FUNCTIONS: dict[str, Any] = {
    "silu": F.silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "relu2": _relu2,
    "quick_gelu": _quick_gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": torch.clone,
}


def pointwise(input, function):
    return FUNCTIONS[function](input)


def swiglu(gate, up):
    return F.silu(gate) * up


def geglu(gate, up, approximate):
    return (_gelu_tanh if approximate == "tanh" else _gelu)(gate) * up


def split(packed, interleaved):
    """Splits the last axis into gate and up."""
    return (packed[..., ::2], packed[..., 1::2]) if interleaved else packed.chunk(2, dim=-1)


def silu_and_mul(input):
    gate, up = input.chunk(2, dim=-1)
    return F.silu(gate) * up


def gate_up(gate, up, function, limit=None, alpha=1.0, up_offset=0.0):
    """The gated activation in the tensors' dtype."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    gate = gate * torch.sigmoid(gate * alpha) if alpha != 1.0 else FUNCTIONS[function](gate)
    return gate * (up + up_offset if up_offset else up)


def gated(input, activation, limit, alpha, up_offset, interleaved):
    gate, up = split(input, interleaved)
    if limit is None and alpha == 1.0 and not up_offset and activation != "quick_gelu":
        return FUNCTIONS[activation](gate) * up
    wide = input.dtype if input.dtype == torch.float64 else torch.float32
    return gate_up(gate.to(wide), up.to(wide), activation, limit, alpha, up_offset).to(input.dtype)
