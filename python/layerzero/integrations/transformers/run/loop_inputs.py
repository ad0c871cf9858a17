"""What the captured steps of one call of `generate` read, and how their tokens reach the host without waiting in a step."""

from typing import Any

import torch
from torch import nn

from layerzero.integrations.transformers.run.captured_step import Inputs
from layerzero.integrations.transformers.run.decoder import seen_by_step


class LoopInputs:
    """Inputs of the first step and of those after it. The arguments are the prompt's. They are read here, before its
    forward is launched: `generate` adds positions that are visible and follow, so no step has to wait for the device to
    know whether it needs a mask or positions.
    """

    def __init__(self, mask: torch.Tensor | None, positions: torch.Tensor | None) -> None:
        self.masked = mask is not None and not bool(mask.all())
        # Of the last position of each sequence; [] where positions are passed on anyway, None where there are none.
        self.last: Any = None if positions is None else [] if self.masked else positions[:, -1].tolist()
        self.inputs: Inputs | None = None  # of the next step, which the last one has written

    def next(self, capacity: int, past: int) -> Inputs | None:
        """For a memory of `capacity` positions, of which `past` are filled. None before the first step."""
        if self.inputs is None:
            return None
        mask = self.inputs.mask
        if mask is not None and mask.shape[-1] < capacity:
            mask = nn.functional.pad(mask, (0, capacity - mask.shape[-1]))
            mask[..., past] = True  # for which the memory so far had no column
        return self.inputs._replace(mask=mask)

    def first(
        self, tokens: torch.Tensor, unfinished: torch.Tensor, mask: Any, positions: Any, capacity: int, past: int
    ) -> Inputs:
        """tokens: (b,). mask and positions: of all positions up to those of the tokens; see `next`."""
        seen = seen_by_step(mask, past, 1, capacity) if self.masked else None
        follow = positions is None or (bool(self.last) and all(last == past - 1 for last in self.last))
        return Inputs(tokens[:, None], None if follow else positions[:, -1:], seen, unfinished)


class Landed:
    """Numbers that are on their way to the host."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)
        self.event: Any = None
        if numbers.is_cuda:
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(numbers.device))

    def wait(self) -> torch.Tensor:
        if self.event is not None:
            self.event.synchronize()
        return self.numbers
