"""AWQ (its GEMM form): qweight (k, n / 8) int32, eight output columns in a word in the order below; qzeros (groups, n / 8)
packed alike; scales (groups, n)."""

from typing import Any

import torch
from torch import nn

from layerzero.integrations.weights import codes

_NAMES = ("qweight", "qzeros", "scales")
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of columns in a word, the lowest bits first


def read(layer: nn.Module) -> codes.Layout | str | None:
    found: list[Any] = [getattr(layer, name, None) for name in _NAMES]
    if not all(isinstance(each, torch.Tensor) for each in found):
        return None
    qweight, qzeros, scales = found
    name = type(layer).__name__
    (k, words), (groups, n) = qweight.shape, scales.shape
    if qweight.dtype != torch.int32 or 8 * words != n or qzeros.shape != (groups, words):
        return f"{name}: its qweight {list(qweight.shape)} is not packed as an AWQ checkpoint's of 4 bits"
    if reason := codes.why_not_this_machine():
        return f"{name}: {reason}"
    if k % groups or k % 2 or scales.dtype not in codes.FLOATS:
        return f"{name}: its {groups} groups of {scales.dtype} do not divide {k} rows as kernels take them"
    return codes.Layout(
        "AWQ",
        f"4 bits by {k // groups}",
        lambda: tuple(getattr(layer, name) for name in _NAMES),
        lambda: _unpack(layer),
    )


def _columns(words: torch.Tensor) -> torch.Tensor:
    """(rows, w) int32 -> (rows, 8 w) uint8 in the order of the columns."""
    fields = codes.columns_of_words(words, 4).unflatten(1, (-1, 8))
    places = torch.tensor([_ORDER.index(column) for column in range(8)], device=words.device)
    return fields.index_select(2, places).flatten(1)


def _unpack(layer: nn.Module) -> list[codes.QuantizedWeight]:
    qweight, qzeros, scales = (getattr(layer, name).detach() for name in _NAMES)
    packed = codes.half_bytes(_columns(qweight).t()).contiguous()
    return [codes.unsigned(packed, 4, scales.t().contiguous(), _columns(qzeros).t())]
