"""The memory of one captured step: its inputs, and where the device finds keys and values of its positions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


def padded_length(length: int) -> int:
    """Positions of the graph that serves a step of `length`: few different numbers, since each has a graph of its own."""
    if length <= 16:
        return 1 << (length - 1).bit_length()
    grain = 16 if length <= 64 else 64
    return -(-length // grain) * grain


class Inputs(NamedTuple):
    """The inputs that change from step to step; a graph reads them from memory of its own. length: new positions of each
    sequence."""

    rows: torch.Tensor  # ids (b, length) int64, or embeddings (b, length, width)
    positions: torch.Tensor | None  # (1 or b, length) int64, or None where they follow those of the cache
    mask: torch.Tensor | None  # (b, 1, length, capacity) bool, or None where it is causal alone
    unfinished: torch.Tensor | None = None  # (b,) bool: sequences that go on, where the step chooses their next tokens

    def kind(self) -> Any:
        return tuple((given.shape, given.dtype) if given is not None else None for given in self)

    def padded(self) -> "Inputs":
        """The inputs with the last position repeated up to `padded_length`. Nothing reads the results of these positions."""
        further = padded_length(self.rows.shape[1]) - self.rows.shape[1]
        if not further:
            return self
        dims = (1, 1, 2, 0)
        return Inputs._make(g if g is None else _extended(g, dim, further) for g, dim in zip(self, dims, strict=True))


def _extended(given: torch.Tensor, dim: int, further: int) -> torch.Tensor:
    """The tensor with the last slice of a dimension repeated `further` more times."""
    last = given.narrow(dim, given.shape[dim] - 1, 1)
    return torch.cat([given, *[last] * further], dim)


class Step:
    """The inputs of a graph and its output; its memory is written before each replay.

    What follows from the number of positions that the cache holds is one tensor, which the graph itself advances: no step
    computes it again. `slots` and `places` have a number for each row of the step (batch length): where its key is stored, and
    its position; `lengths` (batch) the keys that a sequence has with those of the step.
    """

    def __init__(self, inputs: Inputs, capacity: int) -> None:
        device, (batch, length) = inputs.rows.device, inputs.rows.shape[:2]
        dtype = torch.int32 if batch * capacity < 1 << 31 else torch.int64

        def numbers(count: int, times: int = 1, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.arange(count, dtype=dtype, device=device) * times

        # Inference tensors could not be written outside of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            self.inputs = Inputs._make(None if given is None else torch.empty_like(given) for given in inputs)
            # Positions of the step that are no padding, once in the dtype of each tensor that they are added to.
            self.new = [torch.zeros((), dtype=kind, device=device) for kind in (dtype, torch.int64)]
            order = numbers(length, dtype=dtype)
            slots = numbers(batch, capacity, dtype)[:, None] + order
            lengths = torch.full((batch,), length, dtype=dtype, device=device)
            self.of_empty = torch.cat([slots.flatten(), order.repeat(batch), lengths])  # with an empty cache
            self.numbers = self.of_empty.clone()
            self.slots, self.places, self.lengths = self.numbers.split([batch * length, batch * length, batch])
            self.columns = numbers(capacity, dtype=dtype)
            # A sequence is one page of `capacity` positions.
            self.pages = numbers(batch)
            self.first_page = numbers(batch + 1)
            self.first_query = numbers(batch + 1, length)
        self.length, self.capacity = length, capacity
        # For how many positions of the cache the device has `numbers`, and what it has as `new`.
        self.written = [-1, -1]
        self.kernels: dict[str, str] = {}  # see variants.Variant
        self.kept: Any = None  # what else the graph reads
        self.tables: Any = None  # cosines and sines that the graph reads; it does not keep their memory itself
        self.replay: Any = None
        self.output: Any = None  # (b, length, width), in the graphs' memory

    def write(self, inputs: Inputs, past: int, new: int) -> None:
        """Inputs, how many positions the cache holds, and how many of the step's are no padding."""
        if self.written[0] != past:
            torch.add(self.of_empty, past, out=self.numbers)
        if self.written[1] != new:
            self.advance_by(new)
        self.written = [-1, -1]  # until `advanced`
        own: torch.Tensor | None
        for own, given in zip(self.inputs, inputs, strict=True):
            if own is not None and given is not None and given is not own:
                own.copy_(given)

    def advance_by(self, new: int) -> None:
        """What `advance` adds from here on."""
        for number in self.new:
            number.fill_(new)

    def advance(self, counters: Sequence[torch.Tensor]) -> None:
        """On the device, so that the next step finds its numbers there. counters: int64, what else counts the positions."""
        self.numbers.add_(self.new[0])
        if counters:
            # By its overload: torch's parser would take a tensor of one number for a Scalar, which the host waits for.
            torch.ops.aten._foreach_add_.Tensor(list(counters), self.new[1])

    def advance_inputs(self) -> None:
        """After `advance`, of a step that has chosen the next tokens: their positions, and a mask that shows them."""
        if self.inputs.positions is not None:
            self.inputs.positions.add_(self.new[1])
        if self.inputs.mask is not None:
            self.inputs.mask.logical_or_((self.columns == self.places[:, None])[:, None, None])

    def advanced(self, past: int, new: int) -> None:
        self.written = [past + new, new]

    def positions(self) -> torch.Tensor:
        """(1 or b, length) int64."""
        own = self.inputs.positions
        return self.places[None, : self.length].long() if own is None else own

    def causal(self) -> torch.Tensor:
        """(1, 1, length, capacity) bool."""
        return (self.columns <= self.places[: self.length, None])[None, None]


class Branches:
    """Streams that let independent parts of a captured step run at the same time, also in its replays."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.streams = [torch.cuda.Stream(device) for _ in range(count)] if device.type == "cuda" else []

    def run(self, first: Any, *others: Any) -> list[Any]:
        """Runs independent parts, functions without arguments, and returns their results."""
        if not self.streams or not torch.cuda.is_current_stream_capturing():
            return [first(), *(part() for part in others)]
        main = torch.cuda.current_stream()
        results = []
        for stream, part in zip(self.streams, others, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                results.append(part())
        results.insert(0, first())
        for stream in self.streams:
            main.wait_stream(stream)
        return results
