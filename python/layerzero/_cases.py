"""Calls in the grammar of conformance cases as arguments: tensors with the case's memory, strides and offset."""

from typing import Any

import torch

from layerzero import _layerzero
from layerzero._contracts import contracts


def tensor(memory: bytes, dtype: str, shape: Any, strides: Any, offset: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind).as_strided(shape, strides)
    return torch.frombuffer(bytearray(memory), dtype=torch.uint8).view(kind).as_strided(shape, strides, offset)


def arguments_of(name: str, line: str) -> dict[str, Any]:
    """Arguments by name, the layout among them: a line without one means the contract's, where a call would ask."""
    case = _layerzero.verify_case(name, line)
    found = {k: tensor(*v) if isinstance(v, tuple) else v for k, v in case["arguments"].items()}
    layout = case["layout"] or next(iter(contracts()[name]["layouts"]), None)
    return found | ({"layout": layout} if layout else {})
