"""Torch reference of norm.rms.residual: any device, differentiable."""

from .rms_ref import reference as _rms


def reference(input, residual, weight=None, eps=1e-6, *, weight_offset=0.0, normalized_shape=None):  # as in rms_norm
    total = input + residual
    return _rms(total, weight, eps, weight_offset=weight_offset), total
