"""Torch reference of elementwise.binary: any device, differentiable."""

import torch

_FUNCTIONS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}


def reference(input, other, function="add", *, scale=1.0):
    wide = torch.promote_types(torch.promote_types(input.dtype, other.dtype), torch.float32)
    return _FUNCTIONS[function](input.to(wide), other.to(wide) * scale).to(input.dtype)
