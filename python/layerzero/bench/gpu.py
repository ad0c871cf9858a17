"""Times of every kernel that can serve a call on a GPU, called one by one and in CUDA graphs, and measured priors of it.

A kernel's first result is compared with the operation's reference in FP64 on the device; a wrong kernel is reported and
never timed. Each round times all kernels in turns, then the first one again (A/A), between two CUDA events: a run of
calls, so that an eager time is the larger of host and device time, as a program sees it, and a run of replays of a
graph of calls, which leaves the host out. Calls of a `cold` case rotate over copies of its tensors that are twice the L2
cache together. The host's part of a call is taken apart. Kernels that are far slower have fewer rounds.
"""

import contextlib
import functools
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import layerzero as lz
from layerzero import _layerzero
from layerzero.bench import ranking
from layerzero.bench.draw import arguments_on
from layerzero.bench.operations import TOLERANCE, Case
from layerzero.bench.ranking import PARTS, Ranking
from layerzero.contracts import contracts, host_parameter_names, is_seeded
from layerzero.errors import LayerZeroError
from layerzero.torch.references import call_reference

SAMPLE_US = 1000.0  # duration of one sample; at least one call
MOST_CALLS = 200  # of a sample: fewer than the device's queue takes without the host waiting
MOST_COPIES = 64
CAPTURED = 8  # calls in a graph of a warm case
FAR_SLOWER = 3  # times the fastest: kernels that have fewer rounds
FP64_BYTES = 3 << 30  # larger arguments are compared with the reference in their own dtypes
EXACT_SHARE = 0.999  # of integers, which ties may change


@dataclass
class Side:
    """A kernel of a call as it is timed: `run` makes `calls` calls."""

    run: Callable[[], Any]
    calls: int
    repeats: int = 1

    def sample(self) -> tuple[float, float]:
        """Returns us per call between two events, and us of the host's part."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        start.record()
        for _ in range(self.repeats):
            self.run()
        end.record()
        host = time.perf_counter() - begin
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / self.repeats / self.calls, host * 1e6 / self.repeats / self.calls

    def prepare(self) -> float:
        """Warms up and chooses how many calls a sample has; returns us per call."""
        self.run()
        us, _ = self.sample()
        self.repeats = max(1, min(MOST_CALLS, math.ceil(SAMPLE_US / (us * self.calls))))
        return us


def _wide(value: Any) -> Any:
    floats = (torch.float16, torch.bfloat16, torch.float32)
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in floats else value


def _results(name: str, arguments: dict[str, Any], call: Callable[[dict[str, Any]], Any]) -> list[torch.Tensor]:
    """Calls with copies of the tensors that the operation writes; returns its outputs, then these."""
    written = [p["name"] for p in contracts()[name]["params"] if p.get("mutated")]
    given = arguments | {n: arguments[n].clone() for n in written if arguments.get(n) is not None}
    result = call(given)
    outputs = result if isinstance(result, tuple | list) else (result,)
    return [t for t in outputs if isinstance(t, torch.Tensor)] + [given[n] for n in written if given.get(n) is not None]


def _call(name: str, kernel: str, arguments: dict[str, Any]) -> Any:
    return getattr(lz, name)(**arguments, kernel=kernel)


def reference(name: str, arguments: dict[str, Any]) -> list[torch.Tensor]:
    """Returns the operation's reference results: in FP64, if the arguments are not too large for it."""

    def call(given: dict[str, Any]) -> Any:
        given = dict(given)
        return call_reference(name, given, given.pop("layout", None))

    size = sum(t.numel() * 8 for t in arguments.values() if isinstance(t, torch.Tensor) and t.is_floating_point())
    if size <= FP64_BYTES:
        with contextlib.suppress(Exception):  # a reference of stored formats takes them as they are
            return _results(name, {key: _wide(value) for key, value in arguments.items()}, call)
    return _results(name, arguments, call)


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Returns the largest distance of a row from the reference's relative to that row, or the share of integers that
    differ in a table of indices."""
    if got.shape != wanted.shape:
        return math.inf
    if got.dtype in (torch.int32, torch.int64, torch.bool):
        return 0.0 if (got == wanted).float().mean().item() >= EXACT_SHARE else math.inf
    last = got.shape[-1] if got.dim() else 1
    a, b = (
        t.float().reshape(-1, last).double() if t.dtype != torch.float64 else t.reshape(-1, last) for t in (got, wanted)
    )
    same = a == b  # infinities too
    off = torch.where(same, 0.0, a - b).norm(dim=-1)
    norm = torch.where(b.isfinite(), b, 0.0).norm(dim=-1)
    worst = (off / norm.clamp(min=1e-3 * norm.max().item() + 1e-30)).max().item()
    return math.inf if math.isnan(worst) else worst


def check(name: str, results: list[torch.Tensor], wanted: list[torch.Tensor], dtype: torch.dtype) -> str:
    """Returns what is wrong with a kernel's results; empty: nothing. Sampled ids are in the vocabulary, no more is
    known of them here: conformance tests their distribution."""
    if is_seeded(contracts()[name]):
        return ""
    if len(results) != len(wanted):
        return f"{len(results)} results, wanted {len(wanted)}"
    bound = max(TOLERANCE.get(dtype, 3e-2), 1e-3)
    for got, right in zip(results, wanted, strict=True):
        stored = got.dtype not in TOLERANCE and got.dtype not in (torch.int32, torch.int64, torch.bool)
        allowed = max(bound, 3e-2) if stored else max(bound, TOLERANCE.get(got.dtype, 0))
        if not (off := difference(got, right)) <= allowed:
            return f"off by {off:.3g}, allowed {allowed:.3g}"
    return ""


def captured(run: Callable[[], Any], calls: int) -> torch.cuda.CUDAGraph | None:
    """Returns a graph of `calls` runs; None if they cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        torch.cuda.set_sync_debug_mode("error")  # a failed capture leaves torch's generator in capture mode
        run()
    except RuntimeError:
        return None
    finally:
        torch.cuda.set_sync_debug_mode("default")
    try:
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(calls):
                run()
        graph.replay()
        torch.cuda.synchronize()
    except Exception:
        with contextlib.suppress(Exception):  # the next call reports the error of an abandoned capture
            torch.cuda.synchronize()
        return None
    return graph


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"


def _turns(tensors: dict[str, Any], cold: bool) -> list[tuple[Any, ...]]:
    """Returns the tensors of the calls that follow each other; tables of indices are shared, for they are small and
    kernels may have planned with them."""
    if not cold:
        return [tuple(tensors.values())]
    size = sum(t.nbytes for t in tensors.values() if t is not None)
    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    count = max(1, min(MOST_COPIES, math.ceil(2 * l2 / size)))
    copied = [
        tuple(t if t is None or t.dtype in (torch.int32, torch.int64) else t.clone() for t in tensors.values())
        for _ in range(count - 1)
    ]
    return [tuple(tensors.values()), *copied]


def _sides(
    calls: dict[str, Any], turns: list[tuple[Any, ...]], left: dict[str, str], in_graph: bool
) -> dict[str, Side]:
    sides = {}
    for kernel, call in calls.items():
        turn = itertools.cycle(turns)
        run = lambda call=call, turn=turn: call(*next(turn))  # noqa: E731
        try:
            if not in_graph:
                sides[kernel] = Side(run, 1)
            elif graph := captured(run, count := max(len(turns), 1 if len(turns) > 1 else CAPTURED)):
                sides[kernel] = Side(graph.replay, count)
            else:
                left[kernel] = "cannot be captured"
        except LayerZeroError as error:
            left[kernel] = _short(error)
    return sides


def _time(result: Ranking, sides: dict[str, Side], rounds: int) -> None:
    first_us = {kernel: side.prepare() for kernel, side in sides.items()}
    limit = FAR_SLOWER * min(first_us.values())
    host: dict[str, list[float]] = {kernel: [] for kernel in sides}
    result.samples = {kernel: {} for kernel in sides}
    first = min(first_us, key=lambda kernel: first_us[kernel])
    result.samples = {first: {}} | result.samples
    for number in range(rounds if len(sides) > 1 else PARTS):
        running = [k for k in sides if first_us[k] <= limit or number < PARTS]
        for kernel in running if number % 2 else running[::-1]:
            result.samples[kernel][number], spent = sides[kernel].sample()
            host[kernel].append(spent)
        result.again[number], _ = sides[first].sample()
    if result.execution == "eager":
        result.host = {kernel: sorted(spent)[len(spent) // 2] for kernel, spent in host.items()}


def measure(case: Case, rounds: int, device: str = "cuda") -> list[Ranking]:
    """Returns the rankings of the case's call, eager and in a graph."""
    arguments = arguments_on(device, case.operation, case.line)
    contract = contracts()[case.operation]
    names = [p["name"] for p in contract["params"] if p["kind"] == "tensor"]
    while not isinstance(arguments.get(names[-1]), torch.Tensor):
        names.pop()  # a prepared call takes tensors in this order
    tensors: dict[str, Any] = {name: arguments.get(name) for name in names}
    lz.read_tables(*(t for t in tensors.values() if t is not None and t.dtype in (torch.int32, torch.int64)))
    report = lz.explain(case.operation, **arguments)
    axes = {name: int(report.key[name]) for name in contract["axes"] if name in report.key}
    about = {"operation": report.operation, "dtype": report.key["dtype"], "axes": axes}
    about |= {"options": report.options.to_dict(), "bytes": sum(t.nbytes for t in tensors.values() if t is not None)}
    kernels = [c.kernel_id for c in report.candidates if c.admissible and not c.reference]
    in_graphs = lz.explain(case.operation, capturing=True, **arguments).candidates
    wanted = reference(case.operation, arguments)
    left: dict[str, str] = {}
    wrong: dict[str, str] = {}
    calls = {}
    for kernel in kernels:
        try:
            results = _results(case.operation, arguments, functools.partial(_call, case.operation, kernel))
            torch.cuda.synchronize()
            if problem := check(case.operation, results, wanted, next(iter(tensors.values())).dtype):
                wrong[kernel] = problem
            else:
                calls[kernel] = lz.prepare(case.operation, **arguments, kernel=kernel)
        except (LayerZeroError, RuntimeError, TypeError, ValueError) as error:
            if "CUDA error" in str(error):
                raise  # the device is lost for this process
            left[kernel] = _short(error)
    del wanted
    safe = {c.kernel_id for c in in_graphs if c.admissible}
    turns = _turns(tensors, case.cold)
    found = []
    for execution in ("eager", "graph"):
        result = Ranking(case.operation, case.line, execution, case.cold, about, left=dict(left), wrong=dict(wrong))
        those = {k: call for k, call in calls.items() if execution == "eager" or k in safe}
        sides = _sides(those, turns, result.left, execution == "graph")
        if sides:
            _time(result, sides, rounds)
            found.append(result)
    return found


def _facts(operation: str) -> dict[str, Any]:
    """What a kernel of heads has to declare, so that it takes every call."""
    axes = set(contracts()[operation]["axes"])
    facts: dict[str, Any] = {"supports_gqa": True} if {"h_q", "h_kv"} <= axes else {}
    facts |= {"max_head_dim": 1024} if {"d_qk", "d_v"} <= axes else {}
    return facts | ({"supports_causal": True} if operation == "attention" else {})


def routing(case: Case, device: str = "cuda", loops: int = 300) -> float:
    """Returns the us of a call whose kernel does nothing: reading the arguments, the cached selection, the way to a
    Python kernel and back."""
    arguments = arguments_on(device, case.operation, case.line)
    function = getattr(lz, case.operation)
    report = lz.explain(case.operation, **arguments)
    result = function(**arguments)
    given = [n for n in host_parameter_names(case.operation) if n in arguments]
    names = ", ".join(f"{n}=None" for n in given)
    passes = eval(f"lambda {names}: result", {"result": result})
    kernel = "bench.passthrough"
    try:
        dtypes = {str(t.dtype).removeprefix("torch.") for t in arguments.values() if isinstance(t, torch.Tensor)}
        layouts = tuple(contracts()[case.operation]["layouts"]) or ("BSHD",)
        any_device = {"min_sm": None, "max_sm": None} if report.device.platform == "cuda" else {}
        facts = _facts(case.operation) | any_device
        how = {"supported_dtypes": dtypes, "platform": report.device.platform, "requires_layouts": layouts} | facts
        lz.register_kernel(report.operation, kernel, **how)(passes)
        with lz.policy(locks={report.operation: kernel}):
            times = []
            for _ in range(5):
                start = time.perf_counter()
                for _ in range(loops):
                    function(**arguments)
                times.append((time.perf_counter() - start) / loops * 1e6)
            return min(times[1:])
    finally:
        with contextlib.suppress(LayerZeroError):
            lz.unregister_kernel(report.operation, kernel)


def device_columns(device: str = "cuda:0") -> dict[str, Any]:
    """Returns the columns of records that name the device."""
    major, minor = torch.cuda.get_device_capability(device)
    columns = {"device_id": _layerzero.device_id(device), "sm_version": major * 10 + minor}
    return columns | {"cuda_version": torch.version.cuda, **_driver_and_uuid(device)}


def _driver_and_uuid(device: str) -> dict[str, Any]:
    """Returns the columns by which the database keeps the runs of two drivers, and of two GPUs of one kind, apart."""
    found = next((d for d in json.loads(_layerzero.devices())["devices"] if d["name"] == device), None)
    if found is None:
        return {}
    driver = found["facts"]["driver_version"]
    return {
        "driver_version": f"{driver // 1000}.{driver % 1000}" if driver else None,
        "device_uuid": found.get("uuid") or None,
    }


def _in_turns(cases: list[Case]) -> list[Case]:
    """Returns the first case of each operation, then the second: a run that ends early has measured something of each."""
    of: dict[str, list[Case]] = {}
    for case in cases:
        of.setdefault(case.operation, []).append(case)
    return [case for turn in itertools.zip_longest(*of.values()) for case in turn if case is not None]


def _measure_all(
    cases: list[Case], rounds: int, device: str, seconds: float | None, on_step: Callable[..., None] | None
) -> tuple[list[Ranking], dict[str, str], dict[str, int]]:
    """Returns the rankings, the cases that failed as a whole, and why it ended early, if it did: out_of_time has the number
    of cases that were not begun."""
    found: list[Ranking] = []
    failed: dict[str, str] = {}
    start = time.monotonic()
    for number, case in enumerate(_in_turns(cases)):
        if seconds is not None and time.monotonic() - start > seconds:
            return found, failed, {"out_of_time": len(cases) - number}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found += measure(case, rounds, device)
        except KeyboardInterrupt:  # keep what was measured
            return found, failed, {"interrupted": True}
        except (LayerZeroError, RuntimeError, ValueError, TypeError) as error:
            failed[f"{case.operation} {case.line}"] = _short(error)
            if "CUDA error" in str(error):
                return found, failed, {"device_lost": True}
        if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(device).total_memory // 2:
            torch.cuda.empty_cache()
        if on_step:
            on_step(case.operation)
    return found, failed, {}


def run(
    cases: list[Case],
    rounds: int = 12,
    seconds: float | None = None,
    on_step: Callable[..., None] | None = None,
    device: str = "cuda:0",
) -> tuple[dict[str, Any], list[Ranking]]:
    """Returns the report and the rankings, of which ranking.records makes a prior. `seconds`: no case begins later."""
    columns = device_columns(device)
    with torch.no_grad(), torch.cuda.device(device), lz.policy(allow_jit_compile=True):
        found, failed, ended = _measure_all(cases, rounds, device, seconds, on_step)
        regret = ranking.judge(found, device, **columns)
        first = {case.operation: case for case in cases[::-1]}
        passthrough = {} if ended.get("device_lost") else {name: _routing(case, device) for name, case in first.items()}
    report = {
        "device_id": columns["device_id"],
        "torch": torch.__version__,
        "rounds": rounds,
        "l2_bytes": torch.cuda.get_device_properties(device).L2_cache_size,
        "regret": regret,
        "passthrough_us": passthrough,
        "failed": failed,
        "calls": [ranking.row(r) for r in found],
    }
    return report | ended, found


def _routing(case: Case, device: str) -> float | None:
    try:
        return routing(case, device)
    except (LayerZeroError, RuntimeError, ValueError, TypeError):
        return None
