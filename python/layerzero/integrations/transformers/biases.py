"""Biases of attention scores by distance, as T5 has them: a module's `compute_bias` makes them of an embedding."""

import inspect
from typing import Any

import torch
from torch import nn

from layerzero.integrations.transformers.layers import Bias

_ARGUMENTS = {"query_length", "key_length", "past_seen_tokens"}


def compute(module: Any, past: int, length: int) -> torch.Tensor:
    """(1, heads, length, past + length) of the positions after `past`, by the module's own code."""
    return module.compute_bias(query_length=length, key_length=past + length, past_seen_tokens=past)


def of_attention(module: nn.Module, name: str, seen: torch.Tensor) -> Bias | None:
    """The Bias of a layer's module `name`, whose attention got `seen` for the first rows; None if the module computes another one."""
    tables = [path for path, part in module.named_modules() if type(part) is nn.Embedding and part.max_norm is None]
    own = getattr(module, "compute_bias", None)
    if own is None or not seen.any() or len(tables) != 1 or not inspect.signature(own).parameters.keys() >= _ARGUMENTS:
        return None
    with torch.inference_mode():
        made = compute(module, 0, seen.shape[-2])
    return Bias(name, f"{name}.{tables[0]}") if made.shape == seen.shape and torch.equal(made, seen) else None


def with_triangle(bias: torch.Tensor, past: int) -> torch.Tensor:
    """A bias that hides the keys after each row, for rows after `past`."""
    rows = torch.arange(past, past + bias.shape[-2], device=bias.device)[:, None]
    return torch.where(torch.arange(bias.shape[-1], device=bias.device) <= rows, bias, float("-inf"))


def merged(mask: Any, bias: Any, total: int) -> Any:
    """One tensor of a mask, bool or added, and a bias, of the first `total` keys; either may be None.

    A row that sees nothing has one score for all keys, as where a mask of the smallest number is added.
    """
    if mask is not None and mask.shape[-1] > total:
        mask = mask[..., :total]
    if bias is None:
        return mask
    bias = bias[..., :total]
    if mask is None:
        return bias
    return torch.where(mask, bias, torch.finfo(bias.dtype).min) if mask.dtype == torch.bool else mask + bias
