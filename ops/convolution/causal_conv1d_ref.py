"""Torch reference of convolution.causal_conv1d: any device; writes into the state."""

import torch


def reference(input, weight, state, *, bias=None, activation="none"):
    compute = torch.float64  # only intermediate sums may exceed float32
    length, kept = input.shape[1], state.shape[-1]
    x = torch.cat([state, input.transpose(1, 2)], dim=-1)
    first = kept - weight.shape[-1] + 1
    taps = [x[..., first + j : first + j + length].to(compute) for j in range(weight.shape[-1])]
    output = sum(tap * weight[:, j, None].to(compute) for j, tap in enumerate(taps))
    if bias is not None:
        output = output + bias.to(compute)[:, None]
    if activation == "silu":
        output = torch.nn.functional.silu(output)
    state.copy_(x[..., length:])
    return output.transpose(1, 2).to(input.dtype, memory_format=torch.contiguous_format)
