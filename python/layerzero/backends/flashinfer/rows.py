"""FlashInfer's norms, gated activations and softmax, each over rows of the last axis.

fused_add_rmsnorm writes both of its inputs: it gets copies. FlashInfer's samplers draw their own random numbers, where the
operations define a draw by (seed, offset) or by `uniform` (docs/design/0016): they serve no call.
"""

import flashinfer
import torch

from layerzero.backends.flashinfer.compiled import compiled
from layerzero.backends.torch.common import added_and_normed, as_rows

_GATED = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}


def rms_norm(input, weight, eps, weight_offset=None):
    output = torch.empty_like(input)
    if input.numel():
        norm = compiled("rmsnorm", input)
        if norm is None:
            flashinfer.norm.rmsnorm(as_rows(input), weight, eps, out=as_rows(output))
        else:
            norm(as_rows(output), as_rows(input), weight, eps)
    return output


def fused_add_rms_norm(input, residual, weight, eps, weight_offset=None):
    norm = compiled("fused_add_rmsnorm", input) or flashinfer.norm.fused_add_rmsnorm  # of the same arguments
    return added_and_normed(lambda x, total: norm(x, total, weight, eps), input, residual)


def layer_norm(input, normalized_shape, weight, bias, eps, weight_offset=None):
    if not input.numel():
        return torch.empty_like(input)
    norm = compiled("layernorm", input)
    if norm is None:
        return flashinfer.norm.layernorm(as_rows(input), weight, bias, eps).view(input.shape)
    output = torch.empty_like(input)
    norm(as_rows(output), as_rows(input), weight, bias, eps)
    return output


def silu_and_mul(input):
    return gated_activation(input, "silu")


def gated_activation(input, activation, *rest):
    output = input.new_empty((*input.shape[:-1], input.shape[-1] // 2))
    if output.numel():
        name = _GATED[activation]
        gated = compiled(name, input)
        if gated is None:
            getattr(flashinfer.activation, name)(as_rows(input), out=as_rows(output))
        else:
            gated(as_rows(output), as_rows(input))
    return output


def softmax(logits, temperature, row_temperature=None):
    if not logits.numel():
        return torch.empty_like(logits, dtype=torch.float32)
    return flashinfer.sampling.softmax(as_rows(logits).float()).view(logits.shape)
