"""Calls Liger's Triton kernels as kernels; each takes its operation's parameters in the contract's order.

The forward functions are called, not the autograd functions around them, which cost more host time than the kernel runs.
Norms are computed in float32 and rounded once (Liger's "gemma" mode).
"""

import torch
from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward
from liger_kernel.ops.geglu import geglu_forward
from liger_kernel.ops.layer_norm import layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_forward
from liger_kernel.ops.softmax import _softmax_forward
from liger_kernel.ops.swiglu import swiglu_forward

from layerzero.backends.probing import check_rms_norm


def rms_norm(input, weight, eps, weight_offset=None):
    if not input.numel():
        return torch.empty_like(input)
    return rms_norm_forward(input, weight, eps, weight_offset or 0.0, "gemma", None)[0]


def fused_add_rms_norm(input, residual, weight, eps, weight_offset=None):
    if not input.numel():
        return torch.empty_like(input), torch.empty_like(residual)
    return fused_add_rms_norm_forward(input, residual, weight, eps, weight_offset or 0.0, "gemma")[:2]


def layer_norm(input, normalized_shape, weight, bias, eps, weight_offset=None):
    return layer_norm_forward(input, weight, bias, eps)[0] if input.numel() else torch.empty_like(input)


def swiglu(gate, up):
    return swiglu_forward(gate, up)[2] if gate.numel() else torch.empty_like(gate)


def geglu(gate, up, approximate):
    return geglu_forward(gate, up)[2] if gate.numel() else torch.empty_like(gate)


def softmax(logits, temperature, row_temperature=None):
    return _softmax_forward(logits)[0] if logits.numel() else torch.empty_like(logits)


def probe():
    check_rms_norm(rms_norm, torch.float32)
