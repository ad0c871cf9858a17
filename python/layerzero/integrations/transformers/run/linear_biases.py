"""ALiBi: a bias of the scores that grows with the position, by a slope for each head.

A model computes the bias once and passes it to each layer. If the bias is slope * position plus a constant for each head on all
visible keys, a program gets only the slopes; otherwise it gets the bias as part of the mask.
"""

import functools
from typing import Any

import torch

from layerzero.integrations.transformers import biases
from layerzero.integrations.transformers.layers import Alibi


def hidden_by(scores: torch.Tensor) -> torch.Tensor:
    """Where a mask added the smallest number, perhaps before the scores were divided."""
    return scores <= torch.finfo(scores.dtype).min / 64


def rows_of(given: torch.Tensor, heads: int, keys: int, total: int) -> torch.Tensor | None:
    """A bias as (batch or 1, heads, 1, total): of its last `keys` positions the first `total`; None if it has too few."""
    if given.shape[-1] < total or given.numel() % (heads * given.shape[-1]):
        return None
    return given.reshape(-1, heads, 1, given.shape[-1])[..., max(given.shape[-1] - keys, 0) :][..., :total]


def are_linear(rows: torch.Tensor, slopes: torch.Tensor, seen: Any) -> bool:
    """Whether a bias is slope * position plus a constant for each head on the visible keys, within rounding."""
    positions = torch.arange(rows.shape[-1])
    if seen is None:
        seen = torch.ones(1, rows.shape[-1], dtype=torch.bool)
    first = seen.int().argmax(-1)[:, None, None, None]
    rows = rows.expand(max(rows.shape[0], seen.shape[0]), -1, -1, -1)
    origin = rows.float().gather(-1, first.expand(rows.shape[0], rows.shape[1], 1, 1))
    expected = slopes[:, None, None] * (positions - first)
    bound = 2 * torch.finfo(rows.dtype).eps * (rows.float().abs() + origin.abs())
    away = (rows.float() - origin - expected).abs() > bound
    return not bool((away & seen[:, None, None]).any())


def simplified(mask: Any, inverted: bool, past: int) -> Any:
    """A mask as the operation takes it, True for visible keys; None if it is causal. A mask with other numbers is returned as it is."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        shown = ~mask if inverted else mask
    else:
        hidden = hidden_by(mask)
        if bool((mask != 0).logical_and(~hidden).any()):
            return mask
        shown = ~hidden
    keys, rows = torch.arange(mask.shape[-1]), torch.arange(past, past + mask.shape[-2])
    return None if torch.equal(shown, (keys <= rows[:, None]).expand_as(shown)) else shown


def _shows_all(mask: Any, total: int, inverted: bool) -> bool:
    if mask is None:
        return True
    shown = mask[..., :total]
    return bool(shown.all()) if mask.dtype == torch.bool and not inverted else not bool(shown.any())


def _products(slopes: Any, total: int, dtype: torch.dtype) -> torch.Tensor:
    """slope * position, (1, heads, 1, total), as models compute it without padding."""
    return _table_of_products(slopes, 1 << (total - 1).bit_length(), dtype)[..., :total]


@functools.lru_cache(maxsize=8)
def _table_of_products(slopes: Any, positions: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.tensor(slopes)[:, None, None] * torch.arange(positions))[None].to(dtype)


def applied(alibi: Alibi, slopes: Any, heads: int, mask: Any, given: Any, past: int, length: int) -> Any:
    """(mask, slopes or None) for the program of `length` rows after `past`; None if the bias has another shape."""
    total = past + length
    keys = total if mask is None else mask.shape[-1]
    rows = rows_of(given, heads, keys, total) if isinstance(given, torch.Tensor) else None
    if rows is None:
        return None
    exact = alibi.slopes is not None and torch.equal(rows, _products(alibi.slopes, total, rows.dtype).expand_as(rows))
    if exact and length == 1 and _shows_all(mask, total, alibi.inverted):
        return None, slopes
    shown = simplified(None if mask is None else mask[..., :total], alibi.inverted, past)
    if shown is None or shown.dtype == torch.bool:
        seen = None if shown is None else shown[:, 0, -1]
        if exact or (slopes is not None and are_linear(rows, slopes, seen)):
            return shown, slopes
    if shown is None:
        return biases.with_triangle(rows.expand(-1, -1, length, -1), past), None
    return biases.merged(shown, rows, total), None
