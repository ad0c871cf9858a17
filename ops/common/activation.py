"""The activation functions and the gated form of the torch references: ops/common/activation.h."""

import math

import torch
from torch.nn import functional as F


# torch's own forms cancel to 0 in the negative tail, and return NaN for infinity in float32.
def _gelu(x):
    return x * 0.5 * torch.erfc(x * -math.sqrt(0.5))


def _gelu_tanh(x):
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


FUNCTIONS = {
    "silu": F.silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


def wide(x):
    """`x` in the dtype of the computation, before the result is rounded once."""
    return x if x.dtype == torch.float64 else x.float()


def activate(gate, activation, limit=None, alpha=1.0):
    if limit is not None:
        gate = gate.clamp(max=limit)
    if alpha != 1.0:  # silu only
        return gate * torch.sigmoid(alpha * gate)
    return FUNCTIONS[activation](gate)


def gated(gate, up, activation, limit=None, alpha=1.0, up_offset=0.0):
    if limit is not None:
        up = up.clamp(-limit, limit)
    return activate(gate, activation, limit, alpha) * (up + up_offset)


def split(packed, interleaved):
    """gate and up of the last axis."""
    return (packed[..., ::2], packed[..., 1::2]) if interleaved else packed.chunk(2, dim=-1)
