"""FlashInfer's norms, gated activations and softmax, each over rows of the last axis.

fused_add_rmsnorm writes both of its inputs: it gets copies. FlashInfer's samplers draw their own random numbers, where the
operations define a draw by (seed, offset) or by `uniform` (docs/design/0016): they serve no call.
"""

import flashinfer
import torch

from layerzero.backends.torch.common import added_and_normed, as_rows


def rms_norm(input, weight, eps, weight_offset=None):
    output = torch.empty_like(input)
    if input.numel():
        flashinfer.norm.rmsnorm(as_rows(input), weight, eps, out=as_rows(output))
    return output


def fused_add_rms_norm(input, residual, weight, eps, weight_offset=None):
    return added_and_normed(lambda x, total: flashinfer.norm.fused_add_rmsnorm(x, total, weight, eps), input, residual)


def layer_norm(input, normalized_shape, weight, bias, eps, weight_offset=None):
    if not input.numel():
        return torch.empty_like(input)
    return flashinfer.norm.layernorm(as_rows(input), weight, bias, eps).view(input.shape)


def silu_and_mul(input):
    return gated_activation(input, "silu")


def gated_activation(input, activation, *rest):
    output = input.new_empty((*input.shape[:-1], input.shape[-1] // 2))
    if output.numel():
        name = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}[activation]
        getattr(flashinfer.activation, name)(as_rows(input), out=as_rows(output))
    return output


def softmax(logits, temperature, row_temperature=None):
    if not logits.numel():
        return torch.empty_like(logits, dtype=torch.float32)
    return flashinfer.sampling.softmax(as_rows(logits).float()).view(logits.shape)
