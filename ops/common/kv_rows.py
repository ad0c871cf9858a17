"""Rows of keys and values in a paged cache, for the torch references."""

import torch


def append(key_cache, value_cache, key, value, slots, k_scale, v_scale):
    size = key_cache.shape[0] * key_cache.shape[1]
    if slots.numel() and int(slots.max()) >= size:
        raise ValueError(f"slots: wanted numbers below {size}, got {int(slots.max())}")
    kept = (slots >= 0).nonzero()[:, 0]
    block, offset = slots[kept].long() // key_cache.shape[1], slots[kept].long() % key_cache.shape[1]
    for cache, rows, scale in ((key_cache, key, k_scale), (value_cache, value, v_scale)):
        cache[block, offset] = _stored(rows[kept], scale, cache.dtype)


def _stored(rows, scale, dtype):
    if scale is not None:
        rows = rows.float() / scale.reshape(-1, 1)
    elif rows.dtype != dtype:
        rows = rows.float()
    if dtype == torch.int8:
        return rows.nan_to_num(nan=0.0).round().clamp(-127, 127).to(dtype)
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        largest = torch.finfo(dtype).max
        return rows.clamp(-largest, largest).to(dtype)
    return rows.to(dtype)
