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
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import layerzero as lz
from layerzero.bench import ranking
from layerzero.bench.operations import Case
from layerzero.bench.ranking import PARTS, Ranking
from layerzero.contracts import contracts, host_parameter_names
from layerzero.errors import LayerZeroError
from layerzero.tuning import gate
from layerzero.tuning.core import Clock, Side
from layerzero.tuning.draw import arguments_on
from layerzero.tuning.environment import device_columns
from layerzero.tuning.sides import Call, call_of, short, side_of, turns_of

FAR_SLOWER = 3  # times the fastest: kernels that have fewer rounds


def _time(result: Ranking, sides: dict[str, Side], rounds: int, clock: Clock) -> None:
    first_us = {kernel: clock.prepare(side) for kernel, side in sides.items()}
    limit = FAR_SLOWER * min(first_us.values())
    host: dict[str, list[float]] = {kernel: [] for kernel in sides}
    first = min(first_us, key=lambda kernel: first_us[kernel])
    result.samples = {kernel: {} for kernel in dict.fromkeys([first, *sides])}
    for number in range(rounds if len(sides) > 1 else PARTS):
        running = [k for k in sides if first_us[k] <= limit or number < PARTS]
        running = [*(running if number % 2 else running[::-1]), first]
        timed = clock.samples([sides[kernel] for kernel in running], range(len(running)))
        result.again[number] = timed.pop()[0]
        for kernel, (us, spent) in zip(running, timed, strict=False):
            result.samples[kernel][number] = us
            host[kernel].append(spent)
    if result.execution == "eager":
        result.host = {kernel: sorted(spent)[len(spent) // 2] for kernel, spent in host.items()}


def _right(call: Call, left: dict[str, str], wrong: dict[str, str]) -> dict[str, Any]:
    """Returns the prepared calls of the kernels whose results are right; the others go to `left` and `wrong`."""
    wanted = gate.reference(call.name, call.arguments)
    calls = {}
    for kernel in call.kernels:
        try:
            results = gate.results_of(call.name, call.arguments, functools.partial(call.run, kernel))
            torch.cuda.synchronize()
            if problem := gate.check(call.name, results, wanted, call.dtype):
                wrong[kernel] = problem
            else:
                calls[kernel] = call.prepared(kernel)
        except (LayerZeroError, RuntimeError, TypeError, ValueError) as error:
            if "CUDA error" in str(error):
                raise  # the device is lost for this process
            left[kernel] = short(error)
    return calls


def measure(case: Case, rounds: int, device: str = "cuda") -> list[Ranking]:
    """Returns the rankings of the case's call, eager and in a graph."""
    call, clock = call_of(case.operation, arguments_on(device, case.operation, case.line)), Clock.of(device)
    left: dict[str, str] = {}
    wrong: dict[str, str] = {}
    calls = _right(call, left, wrong)
    turns = turns_of(call.tensors, case.cold, "cuda")
    found = []
    for execution in ("eager", "graph"):
        result = Ranking(
            case.operation, case.line, execution, case.cold, call.about, left=dict(left), wrong=dict(wrong)
        )
        sides = {}
        for kernel, prepared in calls.items():
            if execution == "graph" and kernel not in call.in_graphs:
                continue
            side = side_of(prepared, turns, execution == "graph")
            if isinstance(side, Side):
                sides[kernel] = side
            else:
                result.left[kernel] = side
        if sides:
            _time(result, sides, rounds, clock)
            found.append(result)
    return found


def _facts(operation: str) -> dict[str, Any]:
    """What a kernel of heads has to declare, so that it takes every call."""
    contract = contracts()[operation]
    axes = set(contract["axes"])
    facts: dict[str, Any] = {"supports_gqa": True} if {"h_q", "h_kv"} <= axes else {}
    facts |= {"max_head_dim": 1024} if {"d_qk", "d_v"} <= axes else {}
    masks = {"s_q", "s_kv"} <= axes and any(p["name"] == "causal" for p in contract["params"])
    return facts | ({"supports_causal": True} if masks else {})


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
        layouts = tuple(contracts()[case.operation]["layouts"]) or ("any",)
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
        of_case: list[Ranking] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                of_case = measure(case, rounds, device)
            found += of_case
        except KeyboardInterrupt:  # keep what was measured
            return found, failed, {"interrupted": True}
        except (LayerZeroError, RuntimeError, ValueError, TypeError) as error:
            failed[f"{case.operation} {case.line}"] = short(error)
            if "CUDA error" in str(error):
                return found, failed, {"device_lost": True}
        if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(device).total_memory // 2:
            torch.cuda.empty_cache()
        if on_step:
            on_step(case.operation, [ranking.row(r) for r in of_case if r.samples])
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
