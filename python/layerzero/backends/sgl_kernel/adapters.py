"""Calls the operations of sgl_kernel (the distribution sglang-kernel) as kernels; each takes its operation's parameters in
the contract's order.

The operations are called, not the package's functions: those go to FlashInfer where it is installed, which compiles at
the first call. What an operation writes in place is a copy here, never an input.
"""

import sgl_kernel  # noqa: F401  # registers torch.ops.sgl_kernel
import torch

from layerzero.backends.probing import check_rms_norm
from layerzero.backends.torch.common import added_and_normed, as_rows, gated

_ops = torch.ops.sgl_kernel


def rms_norm(input, weight, eps, weight_offset=None):
    output = torch.empty_like(input)
    if input.numel():
        _ops.rmsnorm(as_rows(output), as_rows(input), weight, eps, False)
    return output


def fused_add_rms_norm(input, residual, weight, eps, weight_offset=None):
    return added_and_normed(lambda x, total: _ops.fused_add_rmsnorm(x, total, weight, eps, False), input, residual)


def silu_and_mul(input):
    return gated(_ops, input, "silu")


def gated_activation(input, activation, limit, alpha, up_offset, interleaved):
    return gated(_ops, input, activation)


def moe_route(logits, k, bias, scoring, renormalize, *rest):
    weights = logits.new_empty((*logits.shape[:-1], k), dtype=torch.float32)
    expert_ids = torch.empty_like(weights, dtype=torch.int32)
    if weights.numel():
        outputs = as_rows(weights), as_rows(expert_ids)
        if scoring == "softmax":
            _ops.topk_softmax(
                *outputs, as_rows(logits), renormalize, 0.0, None
            )  # no soft-capping; its bias is one of logits
        else:
            _ops.topk_sigmoid(*outputs, as_rows(logits), renormalize, bias)
    return weights, expert_ids


def probe():
    check_rms_norm(rms_norm, torch.bfloat16)
