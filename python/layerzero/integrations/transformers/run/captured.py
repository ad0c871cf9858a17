"""Steps of a decoder on a CUDA device as CUDA graphs: one launch in place of hundreds, for a token or a short prompt.

A graph holds for one batch size, one number of new positions and one memory of keys and values; how many positions that
memory holds is a number on the device, so a growing cache needs no other graph until its memory is full. Memory that is freed and allocated again at
the same address serves the same graph, so the next call of `generate` finds it. Graphs belong to the weights and the
policy with which they were captured, and go with them.
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
from layerzero.host.policy import may_measure, policy_in_force
from layerzero.integrations.transformers.caches import rows_cache
from layerzero.integrations.transformers.run.captured_step import Inputs, Step, padded_length
from layerzero.torch import captures

_MOST_GRAPHS = 32  # of one model; the one used least recently is dropped
LONG = "it is long enough for the device to be busy while the host calls"
SELECTED = "selected"
_CUDA_LIBRARY = Path(_layerzero.__file__).parent / "liblayerzero_cuda.so"
_FEW_ROWS = ("cuda.mlp.linear", "cuda.mlp.linear.long")  # kernels of products of few rows
_MOST_FEW_ROWS = 16
_TRIALS = 3  # replays with each kernel that are timed
_MOST_ROWS = 512  # of one step: above, the device works longer than the host needs for the calls
# Captures of this process, whose kernels all ask one switch whether they begin early, and moves of weights, which wait for the device.
ONE_AT_A_TIME = threading.RLock()


class CapturedSteps:
    """The graphs of one model with its weights as they are. forward: (Step, rows of the cache) -> last hidden states."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        self.steps: OrderedDict[Any, Step] = OrderedDict()
        self.measured: dict[str, dict[str, Any]] = {}  # see counts.KernelizeReport: "products"
        self.refused: dict[Any, str] = {}  # shapes and dtypes of inputs -> why such a step could not be captured
        self.stamp = _layerzero.plans_stamp()
        self.pool: Any = None  # the memory of the graphs; None: the next one makes it
        self.stream: Any = None  # of the last step
        self.lock = threading.Lock()

    def run(self, inputs: Inputs, cache: Any, rows: Any, past: int) -> tuple[torch.Tensor, str | None]:
        """Returns the last hidden states (b, length, width), and "" if a graph ran, None if this was the first step over this
        memory, which is not worth a capture yet, or why the step cannot be captured.

        rows: keys and values of each layer, (b, capacity, heads, size), of which `past` positions are filled.
        """
        new, inputs = inputs.rows.shape[1], inputs.padded()
        kind = inputs.kind()
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
            self._write(step, inputs, past, new)

            def run() -> None:
                step.output = self.forward(step, rows)

            def run_and_count() -> None:
                run()
                for counter in counters:
                    counter.add_(step.new)
                step.advance()

            if step.replay is None and not is_first and kind not in self.refused:
                self._capture(step, kind, run, run_and_count)
                step.new.fill_(new)
            (step.replay or run_and_count)()
            step.advanced(past, new)
            reason = "" if step.replay else self.refused.get(kind)
            output = step.output[:, :new]
            return (output.clone() if step.replay else output), reason

    def _drop_outdated(self) -> None:
        """After the policy or what was measured changed."""
        stamp = _layerzero.plans_stamp()
        if self.stamp != stamp:
            for step in self.steps.values():
                step.replay = step.output = None
            self.refused.clear()
            self.measured.clear()
            self.stamp, self.pool = stamp, None

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
            with ONE_AT_A_TIME:
                self._capture_fastest(step, run, run_and_count)
            self.stamp = _layerzero.plans_stamp()  # first calls may have advanced it
        except Exception as error:  # of a library, of rotary tables that the host reads, of memory
            self.refused[kind] = f"its step cannot be captured: {type(error).__name__}: {str(error)[:200]}"
            step.kernel = None  # the step runs call by call from here on
            self.pool = None  # torch takes no other capture into the pool of one that failed

    def _capture_fastest(self, step: Step, run: Any, run_and_count: Any) -> None:
        """With the kernels of products that are known for steps of this shape; the first time with each, and the fastest is
        kept. Replays of the trial advance nothing: they store what the step itself will store."""
        batch, length = step.inputs.rows.shape[:2]
        name = f"{batch} x {length}"
        known = self.measured.get(name)
        made: dict[str, Any] = {}
        variants = {SELECTED: (None, False)} | _variants_of(step)
        for variant in [known["taken"]] if known else variants:
            step.kernel, early = variants[variant]
            try:
                with dependent_launches(early):
                    made[variant] = record(run, run_and_count, self.pool), step.output
            except Exception:
                if known or variant == SELECTED:
                    raise
                self.pool = torch.cuda.graph_pool_handle()  # see _capture
        taken = next(iter(made))
        if len(made) > 1:
            step.new.fill_(0)
            times = _times_of({variant: replay for variant, (replay, _) in made.items()})
            taken = min(times, key=lambda variant: times[variant])
            self.measured[name] = {"us": times, "taken": taken}
        step.kernel = variants[taken][0]
        step.replay, step.output = made[taken]


def _variants_of(step: Step) -> dict[str, tuple[str | None, bool]]:
    """Ways to capture a step besides the kernels that its calls select: the kernel of all products, None for those selected, and
    whether kernels are launched early, of which no measurement of a call alone says what it saves. Empty where the step or its
    device has none of them, or the policy leaves nothing to a measurement of this moment."""
    rows, device = step.inputs.rows.shape[0] * step.length, step.past.device
    if rows > _MOST_FEW_ROWS or device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 9:
        return {}
    if not may_measure() or not _CUDA_LIBRARY.exists():
        return {}
    return {"selected, early": (None, True)} | {f"{kernel}, early": (kernel, True) for kernel in _FEW_ROWS}


@contextlib.contextmanager
def dependent_launches(on: bool) -> Iterator[None]:
    """Within it the own CUDA kernels of this process, of all its threads, begin before those before them have ended. The caller
    holds ONE_AT_A_TIME."""
    if not on:
        yield
        return
    library = ctypes.CDLL(str(_CUDA_LIBRARY))
    library.lz_cuda_dependent_launches(1)
    try:
        yield
    finally:
        library.lz_cuda_dependent_launches(0)


def _times_of(replays: dict[str, Any]) -> dict[str, float]:
    """Microseconds of each replay: the shortest of a few, in turns."""
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


def record(warm_up: Any, run: Any, pool: Any) -> Any:
    """Captures `run`, which is not executed; returns what replays it. Runs `warm_up` before, which may be repeated."""
    keys = policy_in_force()["keys"]
    captures.warm_up(warm_up, keys["graph.warmup_iterations"]["value"])
    if keys["graph_strict_mode"]["value"]:
        from layerzero import graphs

        graphs.verify(warm_up)
    graph = torch.cuda.CUDAGraph()
    with captures.capture(graph, pool):
        run()
    return graph.replay


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
    """Takes the place of a model's method: whether `generate` compiles its decode steps without being asked to. It does not
    where they are captured instead.
    """
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
    plain = type(cache) is StaticCache and all(type(layer) is StaticLayer for layer in cache.layers)
    if plain and self.device.type == "cuda" and generation_config.compile_config is None:
        return False
    return type(self)._valid_auto_compile_criteria(self, model_kwargs, generation_config)


AUTO_COMPILE = _valid_auto_compile_criteria
