"""Parses calls in the grammar of conformance cases: tensors with the case's memory, strides and offset."""

from typing import Any

import torch

from layerzero import _layerzero
from layerzero.contracts import contracts


def tensor(memory: bytes, dtype: str, shape: Any, strides: Any, offset: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind).as_strided(shape, strides)
    return torch.frombuffer(bytearray(memory), dtype=torch.uint8).view(kind).as_strided(shape, strides, offset)


def arguments_of(name: str, line: str) -> dict[str, Any]:
    """Returns the arguments by name, with the layout; a case without one has the contract's, without guessing."""
    case = _layerzero.verify_case(name, line)
    found = {k: tensor(*v) if isinstance(v, tuple) else v for k, v in case["arguments"].items()}
    layout = case["layout"] or next(iter(contracts()[name]["layouts"]), None)
    return found | ({"layout": layout} if layout else {})
