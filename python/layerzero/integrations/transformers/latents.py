"""Recognises attention over latents (DeepSeek's): keys and values of all heads are products of one normalised row, with a
rotated row that all heads share; the cache keeps both."""

from typing import Any

import torch

from layerzero.integrations.transformers.layers import Heads, Latent, Norm, Rope, Unknown
from layerzero.integrations.transformers.recorded import same


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


def are_kept(trace: Any, seen: Any) -> bool:
    """Whether the cache has other rows of a recorded layer than the keys of its attention, of one head."""
    kept = _kept(trace, seen)
    return kept is not None and kept[0].shape[1] == 1 and kept[0].shape[1:] != seen.heads[1].shape[1:]


def _kept(trace: Any, seen: Any) -> Any:
    """(keys, values) as the cache has them after the call, or None."""
    layers = getattr(trace.arguments.get(trace.cache), "layers", ())
    index = getattr(seen.module, "layer_idx", None)
    found: Any = layers[index] if index is not None and 0 <= index < len(layers) else None
    return None if getattr(found, "keys", None) is None else (found.keys, found.values)


def of_attention(trace: Any, seen: Any) -> tuple[Heads, Heads, Heads, Latent, Rope, Any]:
    """(queries, keys and values but for their rotated part, Latent, Rope, the call that reads for them) of a recorded layer; raises Unknown."""
    query, key, value = (heads.transpose(1, 2) for heads in seen.heads)
    up, unturned = _up(trace.linears, key, value)
    shared = key.shape[-1] - unturned
    norm, down = _down(trace, up, shared)
    wide = norm.given.shape[-1] + shared
    if up.module.bias is not None or wide == 2 * shared:
        raise Unknown("its keys and values are computed in a way that was not recognised")
    shape = (*key.shape[:2], 1, shared)
    turned = down.result[..., -shared:].reshape(shape)
    for rope, gathers in _ropes(trace, turned, key[..., unturned:]):
        for call in trace.linears:
            if call.result.numel() != query.numel():
                continue
            rows = call.result.reshape(query.shape)
            found = [r for r, g in _ropes(trace, rows[..., unturned:], query[..., unturned:]) if g == gathers]
            if torch.equal(rows[..., :unturned], query[..., :unturned]) and rope in found:
                low, low_norm = _below(trace, call)
                source = low or call
                if not same(source.given, down.given):
                    raise Unknown("its queries, keys and values come from different rows")
                latent = Latent(
                    trace.use(down), norm.given.shape[-1], shared, unturned, value.shape[-1], trace._norm(norm),
                    trace.use(up), gathers, low and trace.use(low), low_norm,
                )  # fmt: skip
                _check_cache(trace, seen, norm.result, key[:, :, :1, unturned:])
                part = Heads(trace.use(call), 0, query.shape[2], query.shape[3], query.shape[3])
                size = unturned + value.shape[-1]
                parts = [
                    Heads(latent.up, at, query.shape[2], n, size)
                    for at, n in ((0, unturned), (unturned, value.shape[-1]))
                ]
                return part, *parts, latent, rope, source
    raise Unknown("its queries are computed in a way that was not recognised")


def _up(linears: Any, key: torch.Tensor, value: torch.Tensor) -> tuple[Any, int]:
    """Returns (the call that computes keys and values of all heads, how many columns of a key are not rotated)."""
    batch, length, heads, size = value.shape
    for call in linears:
        rows = call.result
        unturned = rows.shape[-1] // heads - size
        if (
            rows.shape[-1] == heads * (unturned + size)
            and 0 < unturned < key.shape[-1]
            and rows[..., 0].numel() == batch * length
        ):
            rows = rows.reshape(batch, length, heads, -1)
            if torch.equal(rows[..., :unturned], key[..., :unturned]) and torch.equal(rows[..., unturned:], value):
                return call, unturned
    raise Unknown("its keys and values have different sizes")


def _down(trace: Any, up: Any, shared: int) -> tuple[Any, Any]:
    """The calls of the norm of latents, and of the linear layer that computes them and the shared columns."""
    for norm in trace.all_norms:
        for down in trace.linears if same(norm.result, up.given) else ():
            if same(down.result[..., :-shared], norm.given):
                return norm, down
    raise Unknown("its keys and values are computed in a way that was not recognised")


def _ropes(trace: Any, rows: torch.Tensor, wanted: torch.Tensor) -> Any:
    """[(Rope, whether neighbours are gathered first)] that make `wanted` of rows."""
    for gathers in (False, True):
        for turned, rope in trace._turned(gathered(rows) if gathers else rows):
            if rope is not None and trace._matches(turned.expand_as(wanted), wanted, rope):
                yield rope, gathers


def _below(trace: Any, call: Any) -> tuple[Any, Norm | None]:
    """(the linear layer whose normalised rows the queries' own reads, that norm), or (None, None)."""
    for norm in trace.all_norms:
        for low in trace.linears if same(norm.result, call.given) else ():
            if same(norm.given, low.result):
                return low, trace._norm(norm)
    return None, None


def _check_cache(trace: Any, seen: Any, latents: torch.Tensor, turned: torch.Tensor) -> None:
    keys, values = _kept(trace, seen)
    if keys.shape[1] != 1 or values.shape[1] != 1 or not same(keys, latents) or not same(values, turned):
        raise Unknown("its cache keeps something else than its latents")
