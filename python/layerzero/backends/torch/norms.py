"""Norms of a sum with its residual: the addition, then torch's norm."""

from torch.nn import functional as F


def fused_add_rms_norm(input, residual, weight, eps, weight_offset=None):
    total = input + residual
    return F.rms_norm(total, (total.shape[-1],), weight, eps), total


def fused_add_layer_norm(input, residual, normalized_shape, weight, bias, eps, weight_offset=None):
    total = input + residual
    return F.layer_norm(total, (total.shape[-1],), weight, bias, eps), total
