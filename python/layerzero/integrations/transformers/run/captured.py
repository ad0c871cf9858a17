"""Steps of a decoder on a CUDA device as CUDA graphs: one launch in place of hundreds, for a token or a short prompt.

A graph holds for one batch size, one number of new positions and one memory of keys and values; how many positions that
memory holds is a number on the device, so a growing cache needs no other graph until its memory is full. Memory that is
freed and allocated again at the same address serves the same graph, so the next call of `generate` finds it. Graphs
belong to the weights and the policy with which they were captured, and go with them.
"""

import contextlib
import ctypes
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, StaticCache, StaticLayer

from layerzero import _layerzero
from layerzero.host.policy import may_measure
from layerzero.integrations.transformers.caches import rows_cache
from layerzero.integrations.transformers.run import variants
from layerzero.integrations.transformers.run.captured_step import Inputs, Step, padded_length
from layerzero.integrations.transformers.run.variants import EARLY, Search, Variant, name_of
from layerzero.torch import captures

_MOST_GRAPHS = 32  # of one model; the one used least recently is dropped
_MOST_POLICIES = 8  # for which the choices of one model are kept
LONG = "it is long enough for the device to be busy while the host calls"
_CUDA_LIBRARY = Path(_layerzero.__file__).parent / "liblayerzero_cuda.so"
_MOST_FEW_ROWS = 16
_TRIALS = 3  # replays with each kernel that are timed
_MOST_ROWS = 512  # of one step: above, the device works longer than the host needs for the calls


class CapturedSteps:
    """The graphs of one model with its weights as they are. forward: a DecoderStep."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        self.steps: OrderedDict[Any, Step] = OrderedDict()
        self.measured: dict[str, dict[str, Any]] = {}  # see counts.KernelizeReport: "products"
        self.kept: OrderedDict[Any, Any] = OrderedDict()  # plans_stamp that was in force -> what was measured then
        # By inputs' shapes and dtypes, and whether the cache is static: why such a step could not be captured.
        self.refused: dict[Any, str] = {}
        self.stamp = self._stamp()
        self.pool: Any = None  # the memory of the graphs; None: the next one makes it
        self.stream: Any = None  # of the last step
        self.lock = threading.Lock()

    def run(
        self, inputs: Inputs, cache: Any, rows: Any, past: int, choice: Any = None
    ) -> tuple[torch.Tensor, str | None]:
        """Returns the last hidden states (b, length, width), and "" if a graph ran, None if this was the first step over this
        memory, which is not worth a capture yet, or why the step cannot be captured.

        rows: keys and values of each layer, (b, capacity, heads, size), of which `past` positions are filled. choice: a
        choosing.Choice for a step of one position, which returns the next tokens (b,) instead and leaves the next step's inputs in `choice.inputs`.
        """
        new, inputs = inputs.rows.shape[1], inputs.padded()
        layers: list[Any] = cache.layers if type(cache) is StaticCache else []
        kind = (*inputs.kind(), bool(layers), None if choice is None else choice.key)
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
            self._write(step, inputs, past, new)

            def run() -> None:
                hidden = self.forward(step, rows)
                step.output = hidden if choice is None else choice(step, hidden)

            def run_and_count() -> None:
                run()
                step.advance(counters)
                if choice is not None:
                    step.advance_inputs()

            if step.replay is None and not is_first and kind not in self.refused:
                with contextlib.nullcontext() if choice is None else choice.put_back(step):
                    self._capture(step, kind, run, run_and_count)
                step.advance_by(new)
            (step.replay or run_and_count)()
            step.advanced(past, new)
            reason = "" if step.replay else self.refused.get(kind)
            if choice is not None:
                choice.inputs = step.inputs
            output = step.output[:, :new] if choice is None else step.output
            return (output.clone() if step.replay else output), reason

    def _stamp(self) -> Any:
        return _layerzero.plans_stamp(), self.forward.state()

    def _drop_outdated(self) -> None:
        """Drops graphs after the policy, the measured times or the tables of positions changed. Where a policy comes back, as in a
        server with one for each kind of request, its graphs are captured again with the variants that were chosen before."""
        stamp = self._stamp()
        first_tables = self.stamp[1] is None and stamp[0] == self.stamp[0]  # no graph reads them yet
        if self.stamp != stamp and not first_tables:
            for step in self.steps.values():
                step.replay = step.output = step.tables = None
            self.refused.clear()
            self.pool = None
        if self.stamp[0] != stamp[0]:
            self.kept[self.stamp[0]] = self.measured
            self.measured = self.kept.pop(stamp[0], {})
            if len(self.kept) > _MOST_POLICIES:
                self.kept.popitem(last=False)
        self.stamp = stamp

    def _write(self, step: Step, inputs: Inputs, past: int, new: int) -> None:
        stream = torch.cuda.current_stream()
        if self.stream is not None and self.stream != stream:
            stream.wait_stream(self.stream)  # which may still read the memory of the step
        self.stream = stream
        step.write(inputs, past, new)

    def _capture(self, step: Step, kind: Any, run: Any, run_and_count: Any) -> None:
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            with captures.ONE_AT_A_TIME:
                self._capture_fastest(step, run, run_and_count)
            self.stamp = self._stamp()  # first calls may have advanced it
        except Exception as error:  # of a library, of rotary tables that the host reads, of memory
            self.refused[kind] = f"its step cannot be captured: {type(error).__name__}: {str(error)[:200]}"
            step.kernels = {}  # the step runs call by call from here on
            self.pool = None  # torch takes no other capture into the pool of one that failed

    def _capture_fastest(self, step: Step, run: Any, run_and_count: Any) -> None:
        """As steps of this shape are known to be fastest; the first time in all variants. Replays of the trial advance nothing: they
        store what the step itself will store."""
        name = "{} x {}".format(*step.inputs.rows.shape[:2])
        known = self.measured.get(name)

        def capture(variant: Variant) -> Any:
            step.kernels = {part: kernel for part, kernel in variant.items() if part != EARLY}
            try:
                with dependent_launches(EARLY in variant):
                    return captures.replay_of(run, run_and_count, self.pool), step.output
            except Exception:
                self.pool = torch.cuda.graph_pool_handle()  # see _capture
                raise

        def times_of(made: dict[str, Any]) -> dict[str, float]:
            step.advance_by(0)
            return _times_of({name: replay for name, (replay, _) in made.items()})

        search = Search(capture, times_of)
        search.first([known["variant"]] if known else _first_variants(step))
        if search.us and step.length == 1:
            search.then(self.forward.variants())
        if search.us:
            self.measured[name] = {"us": search.us, "taken": name_of(search.variant), "variant": search.variant}
        step.kernels = {part: kernel for part, kernel in search.variant.items() if part != EARLY}
        step.replay, step.output = search.made


def _first_variants(step: Step) -> list[Variant]:
    """Ways to capture a step, first the kernels that its calls select. That one alone where the step or its device has no others,
    or the policy leaves nothing to a measurement of this moment."""
    rows, device = step.inputs.rows.shape[0] * step.length, step.numbers.device
    few = rows <= _MOST_FEW_ROWS and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return variants.of_all_products() if few and may_measure() and _CUDA_LIBRARY.exists() else [{}]


@contextlib.contextmanager
def dependent_launches(on: bool) -> Iterator[None]:
    """Within the block, LayerZero's CUDA kernels that this thread launches may begin before the kernels before them have ended."""
    if not on:
        yield
        return
    library = ctypes.CDLL(str(_CUDA_LIBRARY))
    before = library.lz_cuda_dependent_launches(1)
    try:
        yield
    finally:
        library.lz_cuda_dependent_launches(before)


def _times_of(replays: dict[str, Any]) -> dict[str, float]:
    """Microseconds of each replay: the shortest of a few, measured in turns."""
    times = dict.fromkeys(replays, float("inf"))
    for number in range(_TRIALS + 1):
        for name, replay in replays.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            end.synchronize()
            if number:  # the first replay of a graph uploads it
                times[name] = min(times[name], round(begin.elapsed_time(end) * 1e3, 1))
    return times


def rows_of(cache: Any, like: torch.Tensor, sizes: rows_cache.Sizes, past: int, length: int) -> Any:
    """Keys and values of each layer, (b, capacity, heads, size), with room for a step of `length` positions more, or None
    where a static cache ends before."""
    padded = padded_length(length)
    if type(cache) is not StaticCache:
        return rows_cache.adopt(cache, like, sizes, past, padded)
    rows = rows_cache.static_rows(cache, like, sizes)
    return rows if past + padded <= rows[0].shape[1] else None


def why_not(inputs: torch.Tensor, cache: Any) -> str | None:
    """None, or why a call is no step for CapturedSteps. inputs: ids (b, length) or embeddings (b, length, width)."""
    if not inputs.is_cuda or cache is None:
        return "it is no step with a cache on a CUDA device"
    if inputs.shape[0] * inputs.shape[1] > _MOST_ROWS and inputs.shape[1] > 1:
        return LONG
    if type(cache) not in (DynamicCache, StaticCache):
        return "its cache is neither a plain DynamicCache nor a plain StaticCache"
    if torch.cuda.is_current_stream_capturing():
        return "it is part of another capture"
    return None if _layerzero.programs_may_run() else "a torch mode sees each call"


def _valid_auto_compile_criteria(self: Any, model_kwargs: Any, generation_config: Any) -> bool:
    """Replaces a model's method: whether `generate` compiles its decode steps by itself. It does not if they are captured instead."""
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    plain = type(cache) is StaticCache and all(type(layer) is StaticLayer for layer in cache.layers)
    if plain and self.device.type == "cuda" and generation_config.compile_config is None:
        return False
    return type(self)._valid_auto_compile_criteria(self, model_kwargs, generation_config)


AUTO_COMPILE = _valid_auto_compile_criteria
