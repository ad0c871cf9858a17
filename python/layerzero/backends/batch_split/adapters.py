"""Calls with more sequences than a launch grid holds, as several calls of parts of the batch."""

import functools
import json
import warnings
from collections.abc import Callable
from typing import Any

import torch

import layerzero as lz
from layerzero import _layerzero
from layerzero.contracts import host_parameter_names

PER_BATCH = ("query", "key", "value", "attn_mask", "alibi_slopes")  # tensors whose first axis may be the batch


@functools.cache
def largest_batch(device: str) -> int:
    """Returns the device's limit of the axis that holds the batch."""
    for one in json.loads(_layerzero.devices())["devices"]:
        if one["name"] == device:
            return int(one["facts"]["max_grid_y"])
    raise LookupError(f"no device {device}")


def _split(operation: str, axes: dict[str, int], values: tuple[Any, ...]) -> Any:
    """Calls an operation for parts of equal size. `axes`: the number of axes with which a tensor has one for the batch."""
    given = dict(zip((*host_parameter_names(operation), "layout"), values, strict=True))
    batch = given["query"].shape[0]
    parts = -(-batch // largest_batch(str(given["query"].device)))
    size = -(-batch // parts)
    warnings.warn(
        f"{operation}: {batch} sequences are split into {parts} calls, because no fused kernel takes them all at once",
        stacklevel=3,
    )
    call: Callable[..., Any] = getattr(lz, operation)
    split = [name for name in PER_BATCH if _has_batch(given.get(name), axes.get(name, 0), batch)]
    results = []
    with lz.policy(locks={}):  # a lock on this kernel is not one on the parts
        for start in range(0, batch, size):
            part = {name: given[name].narrow(0, start, min(size, batch - start)) for name in split}
            results.append(call(**{name: value for name, value in (given | part).items() if value is not None}))
    if isinstance(results[0], tuple):
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))
    return torch.cat(results)


def _has_batch(tensor: Any, axes: int, batch: int) -> bool:
    return tensor is not None and tensor.dim() == axes and tensor.shape[0] == batch


def attention(*values: Any) -> Any:
    return _split("attention", {"query": 4, "key": 4, "value": 4, "attn_mask": 4, "alibi_slopes": 2}, values)


def cross_attention(*values: Any) -> Any:
    return _split("cross_attention", {"query": 4, "key": 4, "value": 4}, values)
