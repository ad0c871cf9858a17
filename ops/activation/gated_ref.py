"""Torch reference of activation.gated: any device, differentiable."""

from ..common import activation as _common


def reference(input, *, activation="silu", limit=None, alpha=1.0, up_offset=0.0, interleaved=False):
    gate, up = _common.split(_common.wide(input), interleaved)
    return _common.gated(gate, up, activation, limit, alpha, up_offset).to(input.dtype)
