"""Torch reference of moe.fused: any device, differentiable."""

import torch

from ..mlp import fused_ref as _mlp


def _of(tensor, expert):
    return None if tensor is None else tensor[expert]


def reference(
    input, expert_ids, expert_weights, gate_weight, down_weight, *, up_weight=None, gate_bias=None, up_bias=None,
    down_bias=None, weighted="output", **activation,
):  # fmt: skip
    rows = input.shape[:-1].numel()
    wide = torch.promote_types(input.dtype, torch.float32)
    x, ids, weights = (t.reshape(rows, t.shape[-1]) for t in (input.to(wide), expert_ids, expert_weights))
    total = torch.zeros(rows, down_weight.shape[1], dtype=wide, device=x.device)
    for expert in range(gate_weight.shape[0]):
        token, slot = torch.where(ids == expert)
        w = weights[token, slot, None].to(wide)
        taken = x[token] * w if weighted == "input" else x[token]
        y = _mlp.reference(
            taken,
            gate_weight[expert],
            down_weight[expert],
            up_weight=_of(up_weight, expert),
            gate_bias=_of(gate_bias, expert),
            up_bias=_of(up_bias, expert),
            down_bias=_of(down_bias, expert),
            **activation,
        )
        total = total.index_add(0, token, y if weighted == "input" else y * w)
    return total.to(input.dtype).reshape(*input.shape[:-1], total.shape[1])
