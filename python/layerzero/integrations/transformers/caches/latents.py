"""Rows of attention over latents (DeepSeek's): the order of columns, and keys and values next to each other in memory."""

import torch


def gathered(rows: torch.Tensor) -> torch.Tensor:
    """Neighbours, (0, 1), (2, 3) and so on, as columns that are half a row apart."""
    return rows.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def joined(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor | None:
    """Returns both as one tensor if each row of `values` directly follows that of `keys`, else None."""
    behind = keys.data_ptr() + keys.shape[-1] * keys.element_size()
    if keys.stride() != values.stride() or keys.dtype != values.dtype or values.data_ptr() != behind:
        return None
    if keys.untyped_storage().data_ptr() != values.untyped_storage().data_ptr():
        return None
    return keys.as_strided((*keys.shape[:-1], keys.shape[-1] + values.shape[-1]), keys.stride(), keys.storage_offset())


def halves(shape: tuple[int, ...], key: int, value: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for keys and values, (*shape, key) and (*shape, value): row by row next to each other if they differ."""
    if key == value:
        both = torch.empty(2, *shape, key, dtype=like.dtype, device=like.device)
        return both[0], both[1]
    whole = torch.empty(*shape, key + value, dtype=like.dtype, device=like.device)
    return whole[..., :key], whole[..., key:]
