"""Cosines and sines of all positions of a cache's memory, made once in place of some ten small kernels in each step."""

import copy
from typing import Any

import torch

from layerzero.integrations.transformers.structure import hooks_of, replaced_forward


class Rotation:
    """The tables that a rotary embedding makes. They are its own numbers: its code makes them of all positions at once, and a few
    positions alone have to give the same bits. Where its frequencies change with the positions that it sees there are none."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.refused = False
        self.made: Any = None  # (state of the module, dtype, device, (cosines, sines))

    def tables(self, count: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of positions 0 up to `count` at least, (positions, width), dense, of the dtype and on the device of `rows`
        (b, length, width); None where each step has to ask the module. Waits for the device where they are not made yet. A graph
        reads them only as long as somebody holds them: larger ones, or those of another dtype, replace them here."""
        module = self.module
        if self.refused or any(hooks_of(module)) or replaced_forward(module.__dict__) is not None:
            return None
        if module._modules:  # `_state_of` does not see what their tensors hold
            return None
        kind = _state_of(module), rows.dtype, rows.device
        if self.made is None or self.made[:3] != kind or len(self.made[3][0]) < count:
            if rows.is_cuda and torch.cuda.is_current_stream_capturing():
                return None
            try:
                tables = _made(module, count, rows[:1, :1])
            except torch.OutOfMemoryError:  # there may be memory the next time
                return None
            self.refused = tables is None
            self.made = None if tables is None else (*kind, tables)
        return None if self.made is None else self.made[3]

    def state(self) -> Any:
        """A value that changes when tables that were returned are no longer those of the module; None before there are any."""
        return None if self.made is None else _state_of(self.module)


def _made(module: Any, count: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """None where the module is no table. Raises torch.OutOfMemoryError."""
    with torch.no_grad():
        try:
            own = copy.deepcopy(module)  # what a call leaves in the module is not for the next call of the model
            before = _state_of(own)
            positions = torch.arange(count, device=rows.device)[None]
            tables = own(rows, position_ids=positions)
            if len(tables) != 2 or any(
                table.shape[:-1] != positions.shape or table.dtype != rows.dtype for table in tables
            ):
                return None
            for place in sorted({0, min(1, count - 1), count // 2, count - 1}):
                alone = own(rows, position_ids=positions[:, place : place + 1])
                if not all(torch.equal(a, b[:, place : place + 1]) for a, b in zip(alone, tables, strict=True)):
                    return None
            if _state_of(own) != before:
                return None
        except torch.OutOfMemoryError:
            raise
        except Exception:  # of code that nobody knows
            return None
        cos, sin = (table[0].contiguous() for table in tables)
        return cos, sin


def _state_of(module: Any) -> Any:
    """A value that changes when a module does: its tensors, how often they were written (of inference tensors nobody knows),
    and its plain attributes."""
    tensors = [*module._buffers.values(), *module._parameters.values()]
    written = [(id(t), None if t is None or t.is_inference() else t._version) for t in tensors]
    plain = [(name, value) for name, value in module.__dict__.items() if isinstance(value, (int, float, str))]
    return written, plain
