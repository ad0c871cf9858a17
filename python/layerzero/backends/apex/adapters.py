"""Calls apex's fused norms, of its extension fused_layer_norm_cuda, as kernels."""

import fused_layer_norm_cuda
import torch

from layerzero.backends.probing import check_rms_norm


def rms_norm(input, weight, eps, weight_offset=None):
    if not input.numel():
        return torch.empty_like(input)
    return fused_layer_norm_cuda.rms_forward_affine(input, list(weight.shape), weight, eps)[0]


def layer_norm(input, normalized_shape, weight, bias, eps, weight_offset=None):
    if not input.numel():
        return torch.empty_like(input)
    return fused_layer_norm_cuda.forward_affine(input, list(weight.shape), weight, bias, eps)[0]


def probe():
    check_rms_norm(rms_norm, torch.float32)
