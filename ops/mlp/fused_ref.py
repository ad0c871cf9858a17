"""Torch reference of mlp.fused: any device, differentiable."""

from torch.nn import functional as F

from ..common import activation as _common


def reference(
    input, gate_weight, down_weight, *, up_weight=None, gate_bias=None, up_bias=None, down_bias=None,
    activation="silu", limit=None, alpha=1.0, up_offset=0.0, interleaved=False,
):  # fmt: skip
    def linear(x, weight, bias):
        return F.linear(x, _common.wide(weight), None if bias is None else _common.wide(bias))

    x = _common.wide(input)
    gate = linear(x, gate_weight, gate_bias)
    up = None
    if up_weight is not None:
        up = linear(x, up_weight, up_bias)
    elif gate_weight.shape[0] != down_weight.shape[1]:
        gate, up = _common.split(gate, interleaved)
    if up is None:
        hidden = _common.activate(gate, activation, limit, alpha)
    else:
        hidden = _common.gated(gate, up, activation, limit, alpha, up_offset)
    return linear(hidden, down_weight, down_bias).to(input.dtype)
