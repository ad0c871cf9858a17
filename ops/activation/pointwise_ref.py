"""Torch reference of activation.pointwise: any device, differentiable."""

from ..common import activation as _common


def reference(input, function):
    return _common.activate(_common.wide(input), function).to(input.dtype)
