"""What the layers of one step share: lengths, tables of pages, and which requests begin. Built once a step.

SGLang keeps a table of token slots, requests by positions. Pages are aligned, so the first slot of each page names it.
Lengths and slots stay on the device; the host knows lengths where SGLang mirrors them.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from layerzero.integrations.serving.pages import Pages, pages_of
from layerzero.torch import offsets


@dataclass
class Extend:
    """Requests with new tokens, n of them; decoding requests of a mixed step are among them."""

    query_start: torch.Tensor  # (n + 1) int32, from 0
    longest: int  # an upper bound of the new tokens of one request
    fresh: bool  # every request begins in this step, so that its keys are those that the layer has computed
    lengths: torch.Tensor  # (n) int32 keys
    tables: torch.Tensor  # (n, width) int32
    window_tables: torch.Tensor | None
    page_size: int
    most: int  # an upper bound of the pages of all

    @functools.cached_property
    def pages(self) -> Pages:
        """For layers that read the cache; a step that needs no list makes none."""
        return pages_of(self.tables, self.lengths, self.page_size, self.most)

    @functools.cached_property
    def window_pages(self) -> Pages:
        """The same where layers with a window have a pool of their own."""
        tables = self.tables if self.window_tables is None else self.window_tables
        return pages_of(tables, self.lengths, self.page_size, self.most)


@dataclass
class Step:
    lengths: torch.Tensor  # (n) int32 keys
    tables: torch.Tensor  # (n, width) int32 pages
    window_tables: torch.Tensor | None = None  # pages of the pool of layers with a window, if they have one
    window_slots: torch.Tensor | None = None  # (tokens) where those layers write
    extend: Extend | None = None  # None: every request decodes one token


class Tables:
    """Tables of pages from SGLang's slots. translate: slots of the whole pool to those of the pool for windows, or None."""

    def __init__(
        self, slots: torch.Tensor, page_size: int, most_tokens: int, translate: Callable[..., torch.Tensor] | None
    ) -> None:
        """slots (requests, positions) int32; most_tokens: of one request."""
        self.slots, self.page_size, self.translate = slots, page_size, translate
        self.width = -(-min(most_tokens, slots.shape[1]) // page_size)

    def width_of(self, lengths_on_host: torch.Tensor | None) -> int:
        """Columns that hold every key."""
        if lengths_on_host is None or not lengths_on_host.numel():
            return self.width
        return max(min(-(-int(lengths_on_host.max()) // self.page_size), self.width), 1)

    def read(self, requests: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """requests (n) rows of the slots. Returns (n, width) pages, and those of the pool for windows."""
        first = self.slots[:, : width * self.page_size : self.page_size].index_select(0, requests)
        windows = None
        if self.translate is not None:
            windows = self.translate(first).to(torch.int32)
        return self._pages(first), None if windows is None else self._pages(windows)

    def _pages(self, first: torch.Tensor) -> torch.Tensor:
        return first if self.page_size == 1 else first.div_(self.page_size, rounding_mode="floor")


def build(batch: Any, tables: Tables) -> Step:
    """batch: SGLang's ForwardBatch of a step that no graph replays."""
    lengths = batch.seq_lens.to(torch.int32)
    width = tables.width_of(batch.seq_lens_cpu)
    pages, windows = tables.read(batch.req_pool_indices, width)
    step = Step(lengths, pages, windows)
    if tables.translate is not None and batch.out_cache_loc is not None:
        step.window_slots = tables.translate(batch.out_cache_loc)
    if not batch.forward_mode.is_decode_or_idle():
        step.extend = _extend(batch, step, tables.page_size)
    return step


def _extend(batch: Any, step: Step, page_size: int) -> Extend:
    new = getattr(batch, "extend_seq_lens_cpu", None)
    prefixes = getattr(batch, "extend_prefix_lens_cpu", None)
    known = batch.seq_lens_cpu
    count, width = step.tables.shape
    query_start = F.pad(batch.extend_seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
    if new is not None:
        offsets.declare(query_start, [0, *itertools.accumulate(map(int, new))])
    return Extend(
        query_start=query_start,
        longest=max(map(int, new), default=0) if new is not None else width * page_size,
        fresh=prefixes is not None and not any(map(int, prefixes)),
        lengths=step.lengths,
        tables=step.tables,
        window_tables=step.window_tables,
        page_size=page_size,
        most=count * width
        if known is None
        else int((known + (page_size - 1)).div(page_size, rounding_mode="floor").sum()),
    )


class GraphState:
    """Memory that captured decode steps read; each replay writes it before."""

    def __init__(self, tables: Tables, most_requests: int, most_tokens: int, device: torch.device | str) -> None:
        place: Any = {"dtype": torch.int32, "device": device}
        split = tables.translate is not None
        self.tables = tables
        self.lengths = torch.zeros(most_requests, **place)
        self.pages = torch.zeros(most_requests, tables.width, **place)
        self.windows = torch.zeros(most_requests, tables.width, **place) if split else None
        self.slots = torch.zeros(most_tokens, dtype=torch.int64, device=device) if split else None

    def fill(self, batch: Any) -> Step:
        """Returns views whose addresses are the same in each step of this size. Columns beyond the longest request keep
        old pages, which no key needs."""
        count = batch.batch_size
        self.lengths[:count].copy_(batch.seq_lens[:count])
        width = self.tables.width_of(batch.seq_lens_cpu)
        pages, windows = self.tables.read(batch.req_pool_indices[:count], width)
        self.pages[:count, :width].copy_(pages)
        step = Step(self.lengths[:count], self.pages[:count])
        if self.windows is not None and self.slots is not None and windows is not None:
            self.windows[:count, :width].copy_(windows)
            step.window_tables, step.window_slots = self.windows[:count], self._write_slots(batch, count)
        return step

    def _write_slots(self, batch: Any, count: int) -> torch.Tensor:
        """Of a batch that may have fewer tokens than its graph; the others write slot 0, which belongs to nobody."""
        slots, translate = self.slots, self.tables.translate
        assert slots is not None and translate is not None
        new = translate(batch.out_cache_loc[:count])
        slots[: len(new)].copy_(new)
        slots[len(new) : count].zero_()
        return slots[:count]
