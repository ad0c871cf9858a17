"""The encoder's rows that decoder layers attend to; their keys and values are computed once."""

from typing import Any, NamedTuple

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

from layerzero.integrations.transformers.layers import Heads


class Encoded(NamedTuple):
    """rows: (batch, positions, width). mask: (batch, 1, 1 or length, positions), or None. cache: the model's, or None."""

    rows: Any
    mask: Any
    cache: EncoderDecoderCache | None


def why_not(encoded: Encoded, hidden: torch.Tensor) -> str | None:
    """None, or why a program cannot attend to these rows."""
    rows, mask, cache = encoded
    if type(rows) is not torch.Tensor or rows.dim() != 3 or rows.dtype != hidden.dtype:
        return "the rows of the encoder are missing, or of another dtype"
    if rows.shape[0] != hidden.shape[0] or rows.device != hidden.device:
        return "the rows of the encoder are of another batch or device"
    if cache is not None and type(cache.cross_attention_cache) not in (DynamicCache, StaticCache):
        return "the cache of the encoder's keys is neither a plain DynamicCache nor a plain StaticCache"
    kept = [] if cache is None else [getattr(layer, "keys", None) for layer in cache.cross_attention_cache.layers]
    if any(keys is not None and keys.numel() and keys.shape[0] != hidden.shape[0] for keys in kept):
        return "the cached keys of the encoder are of another batch"
    if mask is not None and (type(mask) is not torch.Tensor or mask.dim() != 4 or mask.shape[1] != 1):
        return "the mask of the encoder's rows is not one value for each row and key"
    return None


def keys_and_values(plan: Any, encoded: Encoded) -> list[torch.Tensor]:
    """Keys and values (batch, positions, heads, size) of each layer that attends to the rows; missing ones are added to the cache."""
    found = []
    for layer in plan.layers:
        cross, index = layer.shape.cross, layer.shape.index
        if cross is None:
            continue
        pair = _cached(encoded.cache, index)
        if pair is None:
            pair = [_heads(plan.multiply(encoded.rows, layer[part.linear]), part) for part in (cross.key, cross.value)]
            if encoded.cache is not None:
                pair = encoded.cache.cross_attention_cache.update(*pair, index)
                encoded.cache.is_updated[index] = True
        found += [half.transpose(1, 2) for half in pair]
    return found


def _cached(cache: Any, index: int) -> Any:
    if cache is None or not cache.is_updated.get(index):
        return None
    layer = cache.cross_attention_cache.layers[index]
    return layer.keys, layer.values


def _heads(rows: torch.Tensor, part: Heads) -> torch.Tensor:
    """(batch, heads, positions, size), as caches keep it."""
    return rows.unflatten(-1, (part.heads, part.size)).transpose(1, 2).contiguous()
