"""Decode steps of a decoder on a CUDA device as CUDA graphs: one launch for a token in place of hundreds.

A graph holds for one batch size and one memory of keys and values; how many positions that memory holds is a number on
the device, so a growing cache needs no other graph until its memory is full. Memory that is freed and allocated again at
the same address serves the same graph, so the next call of `generate` finds it. Graphs belong to the weights and the
policy with which they were captured, and go with them.
"""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import DynamicCache, StaticCache, StaticLayer

from layerzero import _layerzero
from layerzero.integrations.transformers import rows_cache

_MOST_GRAPHS = 32  # of one model; the one used least recently is dropped
_WARM_UPS = 1  # besides the first step: libraries plan and allocate in their first calls, which a capture forbids


class Inputs(NamedTuple):
    """What changes from step to step; a graph reads it from memory of its own."""

    rows: torch.Tensor  # ids (b, 1) int64, or embeddings (b, 1, width)
    positions: torch.Tensor  # (1 or b, 1) int64
    mask: torch.Tensor | None  # (b, 1, 1, capacity) bool, or None where every position is visible


class Step:
    """One captured step; its memory is written before each replay."""

    def __init__(self, inputs: Inputs, capacity: int) -> None:
        device, batch = inputs.rows.device, inputs.rows.shape[0]
        # Inference tensors could not be written outside of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            mask = None if inputs.mask is None else torch.empty_like(inputs.mask)
            self.inputs = Inputs(torch.empty_like(inputs.rows), torch.empty_like(inputs.positions), mask)
            self.past = torch.zeros((), dtype=torch.int64, device=device)
            self.first = torch.arange(batch, dtype=torch.int64, device=device) * capacity  # slot of each sequence
            self.tables = torch.arange(batch, dtype=torch.int32, device=device)[:, None]  # a sequence is a page
        self.replay: Any = None
        self.output: Any = None  # (b, 1, width), in the graphs' memory

    def write(self, inputs: Inputs, past: int) -> None:
        self.past.fill_(past)
        for own, given in zip(self.inputs, inputs, strict=True):
            if own is not None and given is not None:
                own.copy_(given)

    def place(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(slots of the new rows (b) int64, lengths with them (b) int32), computed on the device."""
        return self.first + self.past, (self.past + 1).to(torch.int32).expand(len(self.first)).contiguous()


class CapturedSteps:
    """The graphs of one model with its weights as they are. forward: (Step, rows of the cache) -> last hidden states."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        self.steps: OrderedDict[Any, Step] = OrderedDict()
        self.refused: dict[Any, str] = {}  # shapes and dtypes of inputs -> why such a step could not be captured
        self.stamp = _layerzero.plans_stamp()
        self.pool: Any = None  # of all graphs' memory; None: there is no graph
        self.stream: Any = None  # of the last step
        self.lock = threading.Lock()

    def run(self, inputs: Inputs, cache: Any, rows: Any, past: int) -> tuple[torch.Tensor, str | None]:
        """Returns the last hidden states (b, 1, width), and "" if a graph ran, None if this was the first step over this
        memory, which is not worth a capture yet, or why the step cannot be captured.

        rows: keys and values of each layer, (b, capacity, heads, size), of which `past` positions are filled.
        """
        kind = tuple((given.shape, given.dtype) if given is not None else None for given in inputs)
        layers: list[Any] = cache.layers if type(cache) is StaticCache else []
        counters = [layer.cumulative_length for layer in layers]
        key = kind, rows[0].shape[1], *(tensor.data_ptr() for tensor in (*rows, *counters))
        with self.lock, torch.cuda.device(inputs.rows.device):
            self._drop_outdated()
            is_first = key not in self.steps
            if is_first:
                self.steps[key] = Step(inputs, rows[0].shape[1])
                if len(self.steps) > _MOST_GRAPHS:
                    self.steps.popitem(last=False)
            self.steps.move_to_end(key)
            step = self.steps[key]
            self._write(step, inputs, past)

            def run() -> None:
                step.output = self.forward(step, rows)

            def run_and_count() -> None:
                run()
                for counter in counters:
                    counter.add_(1)

            if step.replay is None and not is_first and kind not in self.refused:
                self._capture(step, kind, run, run_and_count)
            (step.replay or run_and_count)()
            reason = "" if step.replay else self.refused.get(kind)
            return (step.output.clone() if step.replay else step.output), reason

    def _drop_outdated(self) -> None:
        """After the policy or what was measured changed."""
        stamp = _layerzero.plans_stamp()
        if self.stamp != stamp:
            for step in self.steps.values():
                step.replay = step.output = None
            self.refused.clear()
            self.stamp, self.pool = stamp, None

    def _write(self, step: Step, inputs: Inputs, past: int) -> None:
        stream = torch.cuda.current_stream()
        if self.stream is not None and self.stream != stream:
            stream.wait_stream(self.stream)  # which may still read the memory of the step
        self.stream = stream
        step.write(inputs, past)

    def _capture(self, step: Step, kind: Any, run: Any, run_and_count: Any) -> None:
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            step.replay = record(run, run_and_count, self.pool)
            self.stamp = _layerzero.plans_stamp()  # first calls may have advanced it
        except Exception as error:  # of a library, of rotary tables that the host reads, of memory
            self.refused[kind] = f"its step cannot be captured: {type(error).__name__}: {str(error)[:200]}"
            if not any(each.replay for each in self.steps.values()):
                self.pool = None


def record(warm_up: Any, run: Any, pool: Any) -> Any:
    """Captures `run`, which is not executed; returns what replays it. Runs `warm_up` before, which may be repeated."""
    stream, side, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(stream)
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            warm_up()
    stream.wait_stream(side)
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        run()
    return graph.replay


def rows_of(cache: Any, like: torch.Tensor, sizes: rows_cache.Sizes, past: int) -> Any:
    """Keys and values of each layer, (b, capacity, heads, size), with room for one position more."""
    if type(cache) is StaticCache:
        return rows_cache.static_rows(cache, like, sizes)
    return rows_cache.adopt(cache, like, sizes, past, 1)


def why_not(inputs: torch.Tensor, cache: Any) -> str | None:
    """None, or why a call is no step for CapturedSteps. inputs: ids (b, length) or embeddings (b, length, width)."""
    if not inputs.is_cuda or inputs.shape[1] != 1 or cache is None:
        return "it is no decode step on a CUDA device"
    if type(cache) not in (DynamicCache, StaticCache):
        return "its cache is neither a plain DynamicCache nor a plain StaticCache"
    if torch.cuda.is_current_stream_capturing():
        return "it is part of another capture"
    return None if _layerzero.programs_may_run() else "a torch mode sees each call"


def _valid_auto_compile_criteria(self: Any, model_kwargs: Any, generation_config: Any) -> bool:
    """Takes the place of a model's method: whether `generate` compiles its decode steps without being asked to. It does not
    where they are captured instead.
    """
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    plain = type(cache) is StaticCache and all(type(layer) is StaticLayer for layer in cache.layers)
    if plain and self.device.type == "cuda" and generation_config.compile_config is None:
        return False
    return type(self)._valid_auto_compile_criteria(self, model_kwargs, generation_config)


AUTO_COMPILE = _valid_auto_compile_criteria
