"""The memory of one captured step: its inputs, and where the device finds keys and values of its positions."""

from typing import Any, NamedTuple

import torch


def padded_length(length: int) -> int:
    """Positions of the graph that serves a step of `length`: few different numbers, since each has a graph of its own."""
    if length <= 16:
        return 1 << (length - 1).bit_length()
    grain = 16 if length <= 64 else 64
    return -(-length // grain) * grain


class Inputs(NamedTuple):
    """What changes from step to step; a graph reads it from memory of its own. length: new positions of each sequence."""

    rows: torch.Tensor  # ids (b, length) int64, or embeddings (b, length, width)
    positions: torch.Tensor | None  # (1 or b, length) int64, or None where they follow those of the cache
    mask: torch.Tensor | None  # (b, 1, length, capacity) bool, or None where it is causal alone

    def kind(self) -> Any:
        return tuple((given.shape, given.dtype) if given is not None else None for given in self)

    def padded(self) -> "Inputs":
        """With the last position repeated up to `padded_length`. Nothing reads what these positions compute."""
        further = padded_length(self.rows.shape[1]) - self.rows.shape[1]
        if not further:
            return self
        dims = (1, 1, 2)
        return Inputs._make(g if g is None else _extended(g, dim, further) for g, dim in zip(self, dims, strict=True))


def _extended(given: torch.Tensor, dim: int, further: int) -> torch.Tensor:
    """With the last slice of a dimension `further` times more."""
    last = given.narrow(dim, given.shape[dim] - 1, 1)
    return torch.cat([given, *[last] * further], dim)


class Step:
    """The inputs of a graph and its output; its memory is written before each replay."""

    def __init__(self, inputs: Inputs, capacity: int) -> None:
        device, (batch, length) = inputs.rows.device, inputs.rows.shape[:2]

        def numbers(count: int, dtype: torch.dtype, times: int = 1) -> torch.Tensor:
            return torch.arange(count, dtype=dtype, device=device) * times

        # Inference tensors could not be written outside of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            self.inputs = Inputs._make(None if given is None else torch.empty_like(given) for given in inputs)
            self.past = torch.zeros((), dtype=torch.int64, device=device)  # positions of the cache
            self.new = torch.zeros((), dtype=torch.int64, device=device)  # of the step's, those that are no padding
            self.order = numbers(length, torch.int64)
            self.offsets = numbers(batch, torch.int64, capacity)[:, None] + self.order
            self.columns = numbers(capacity, torch.int64)
            # A sequence is one page of `capacity` positions.
            self.pages = numbers(batch, torch.int32)
            self.first_page = numbers(batch + 1, torch.int32)
            self.first_query = numbers(batch + 1, torch.int32, length)
        self.length = length
        self.written = [-1, -1]  # what the device has as `past` and `new`
        self.kernel: str | None = None  # of the products; None: what each call selects
        self.replay: Any = None
        self.output: Any = None  # (b, length, width), in the graphs' memory

    def write(self, inputs: Inputs, past: int, new: int) -> None:
        """Inputs, how many positions the cache holds, and how many of the step's are no padding."""
        for index, (number, value) in enumerate(((self.past, past), (self.new, new))):
            if self.written[index] != value:
                number.fill_(value)
        self.written = [-1, -1]  # until `advanced`
        own: torch.Tensor | None
        for own, given in zip(self.inputs, inputs, strict=True):
            if own is not None and given is not None:
                own.copy_(given)

    def advance(self) -> None:
        """On the device, so that the next step finds `past` there."""
        self.past.add_(self.new)

    def advanced(self, past: int, new: int) -> None:
        self.written = [past + new, new]

    def positions(self) -> torch.Tensor:
        own = self.inputs.positions
        return (self.past + self.order)[None] if own is None else own

    def place(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(slots of the new positions (b length) int64, positions with them (b) int32), computed on the device."""
        lengths = (self.past + self.length).to(torch.int32).expand(len(self.pages)).contiguous()
        return (self.offsets + self.past).flatten(), lengths

    def causal(self) -> torch.Tensor:
        """(1, 1, length, capacity) bool."""
        return (self.columns <= (self.past + self.order)[:, None])[None, None]


class Branches:
    """Streams on which independent parts of a step run side by side while it is captured, as they do in its replays."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.streams = [torch.cuda.Stream(device) for _ in range(count)] if device.type == "cuda" else []

    def run(self, first: Any, *others: Any) -> list[Any]:
        """The results of parts without arguments, of which each reads what was computed before this call."""
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
