"""The kernels of one call as sides of a comparison: prepared calls over tensors that are warm or cold, one by one or in a
CUDA graph."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import layerzero as lz
from layerzero.contracts import contracts
from layerzero.errors import LayerZeroError
from layerzero.torch import captures
from layerzero.tuning.core import Side

COLD_BYTES = 96 << 20  # more than a share of the last-level cache, so that reads come from memory
MOST_COPIES = {"cpu": 16, "cuda": 64}
CAPTURED = 8  # calls in a graph of a warm case


@dataclass
class Call:
    """One call with its tensors, and what may run it."""

    name: str
    arguments: dict[str, Any]
    tensors: dict[str, Any]  # as a prepared call takes them, None for absent ones
    about: dict[str, Any]  # "operation" (the id), "axes", "options", "dtype", "bytes"
    kernels: list[str]  # admissible ones without references
    in_graphs: set[str]
    chosen: str  # the kernel that the call runs now

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype of the first tensor."""
        return next(t.dtype for t in self.tensors.values() if t is not None)

    def run(self, kernel: str, given: dict[str, Any]) -> Any:
        """Calls the operation with this kernel."""
        return getattr(lz, self.name)(**given, kernel=kernel)

    def prepared(self, kernel: str) -> Any:
        """Returns the prepared call of a kernel."""
        return lz.prepare(self.name, **self.arguments, kernel=kernel)


def call_of(name: str, arguments: dict[str, Any]) -> Call:
    """Returns the call; its tables of indices are read now, so that kernels which plan with them can."""
    contract = contracts()[name]
    names = [p["name"] for p in contract["params"] if p["kind"] == "tensor"]
    while names and not isinstance(arguments.get(names[-1]), torch.Tensor):
        names.pop()
    tensors: dict[str, Any] = {n: arguments.get(n) for n in names}
    given = [t for t in tensors.values() if t is not None]
    if any(t.is_cuda for t in given):
        lz.read_tables(*(t for t in given if t.dtype in (torch.int32, torch.int64)))
    report = lz.explain(name, **arguments)
    axes = {axis: int(report.key[axis]) for axis in contract["axes"] if axis in report.key}
    about = {"operation": report.operation, "dtype": report.key["dtype"], "axes": axes}
    about |= {"options": report.options.to_dict(), "bytes": sum(t.nbytes for t in given)}
    kernels = [c.kernel_id for c in report.candidates if c.admissible and not c.reference]
    capturing = lz.explain(name, capturing=True, **arguments).candidates
    in_graphs = {c.kernel_id for c in capturing if c.admissible}
    return Call(name, arguments, tensors, about, kernels, in_graphs, report.kernel_id or "")


def turns_of(tensors: dict[str, Any], cold: bool, kind: str) -> tuple[tuple[Any, ...], ...]:
    """Returns the tensors of the calls that follow each other. Cold: copies that are larger than the caches together; tables
    of indices are shared, for they are small and kernels may have planned with them."""
    if not cold:
        return (tuple(tensors.values()),)
    size = max(1, sum(t.nbytes for t in tensors.values() if t is not None))
    if kind == "cuda":
        wanted = 2 * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    else:
        wanted = COLD_BYTES
    count = max(1, min(MOST_COPIES[kind], math.ceil(wanted / size)))
    copied = [
        tuple(t if t is None or t.dtype in (torch.int32, torch.int64) else t.clone() for t in tensors.values())
        for _ in range(count - 1)
    ]
    return (tuple(tensors.values()), *copied)


def captured(run: Callable[[], Any], calls: int) -> torch.cuda.CUDAGraph | None:
    """Returns a graph of `calls` runs; None if they cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        torch.cuda.set_sync_debug_mode("error")
        run()
    except RuntimeError:
        return None
    finally:
        torch.cuda.set_sync_debug_mode("default")
    try:
        torch.cuda.synchronize()
        with captures.capture(graph):
            for _ in range(calls):
                run()
        graph.replay()
        torch.cuda.synchronize()
    except Exception:
        return None
    return graph


def short(error: BaseException) -> str:
    """Returns an error in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"


def side_of(call: Any, turns: tuple[tuple[Any, ...], ...], in_graph: bool) -> Side | str:
    """Returns the side of a prepared call, or why there is none."""
    if not in_graph:
        return Side(call, turns)
    turn = itertools.cycle(turns)
    try:
        graph = captured(lambda: call(*next(turn)), count := len(turns) if len(turns) > 1 else CAPTURED)
    except LayerZeroError as error:
        return short(error)
    return Side(graph.replay, calls=count) if graph else "cannot be captured"
