"""Shared code of attention kernels written as torch expressions. Nothing here reads a value from a CUDA device."""

import torch

from layerzero.backends.torch.common import wants_grad

HALF = (torch.float16, torch.bfloat16)


def products_dtype(query, *others):
    """Returns the dtype of matrix product operands: half precision on CUDA, where `product` accumulates in float32."""
    half = query.is_cuda and query.dtype in HALF and not wants_grad(query, *others)
    return query.dtype if half else torch.promote_types(query.dtype, torch.float32)


def product(a, b):
    """Returns a (..., rows, n) @ b (..., n, columns) with equal leading axes, in at least float32."""
    if a.dtype not in HALF:
        return a @ b
    lead = a.shape[:-2]
    if not a.is_cuda:
        return a.float() @ b.float()
    return torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=torch.float32).unflatten(0, lead)


def no_minus_inf(tensor):
    """Replaces -inf by the lowest number, so that a row's maximum can be subtracted from its values: they stay -inf."""
    return tensor.clamp(min=torch.finfo(tensor.dtype).min)


def weighted(weights, seen, value):
    """Returns weights (..., rows, keys) @ value (..., keys, d) in at least float32; a key that a row does not see adds
    nothing to it, even if its value is NaN. seen: bool like weights; None: each row sees all keys."""
    out = product(weights.to(value.dtype), value)
    if seen is None or out.device.type == "cpu" and bool(out.isfinite().all()):
        return out
    special = torch.cat([value.isnan(), value == torch.inf, value == -torch.inf], -1).to(value.dtype)
    nan, up, down = (product(seen.to(value.dtype), special) > 0).chunk(3, -1)
    out = product(weights.to(value.dtype), value.masked_fill(~value.isfinite(), 0))
    out = out + torch.where(up, torch.inf, 0.0) + torch.where(down, -torch.inf, 0.0)
    return out.masked_fill(nan, torch.nan)
