"""Torch reference of mlp.head_linear: any device, differentiable."""

import torch


def reference(input, weight, dtype):
    out = getattr(torch, dtype)
    compute = torch.promote_types(torch.promote_types(input.dtype, out), torch.float32)
    return torch.einsum("...hk,hnk->...hn", input.to(compute), weight.to(compute)).to(out)
