"""Torch reference of kv.gather: any device."""

import torch


def reference(cache, slots, *, scale=None, dtype=None):
    size = cache.shape[0] * cache.shape[1]
    if slots.numel() and int(slots.max()) >= size:
        raise ValueError(f"slots: wanted numbers below {size}, got {int(slots.max())}")
    dtype = cache.dtype if dtype is None else getattr(torch, dtype)
    kept = (slots >= 0).nonzero()[:, 0]
    block, offset = slots[kept].long() // cache.shape[1], slots[kept].long() % cache.shape[1]
    rows = cache[block, offset]
    if scale is not None:
        rows = rows.float() * scale.reshape(-1, 1)
    elif rows.dtype != dtype:
        rows = rows.float()
    output = cache.new_zeros(slots.shape[0], *cache.shape[2:], dtype=dtype)
    output[kept] = rows.to(dtype)
    return output
