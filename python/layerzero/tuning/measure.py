"""Tunes one call: which kernels are right, and which is the fastest in each mode (eager, in a graph; cold and warm)."""

import functools
import itertools
import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import layerzero as lz
from layerzero.errors import LayerZeroError, OutOfMemoryError
from layerzero.tuning import core, gate, records, sides
from layerzero.tuning.core import Clock, Ratio, Rounds, Side, Verdict
from layerzero.tuning.draw import arguments_on

OUT_OF_MEMORY = "out of memory"
_MEMORY_TEXTS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


@dataclass
class Settings:
    """How calls are tuned."""

    device: str = "cpu"
    rounds: int = 20
    caches: tuple[str, ...] = ("cold", "warm")
    executions: tuple[str, ...] = ("eager", "graph")
    columns: dict[str, Any] = field(default_factory=dict)  # of records: device and environment
    denied: dict[str, str] = field(default_factory=dict)  # "operation kernel" -> why it is not tried again
    seed: int = 0
    until: float | None = None  # by time.monotonic(), which processes share: no finals are made longer after it

    def modes(self) -> list[tuple[str, str]]:
        """Returns (execution, cache state) in the order in which they are measured."""
        executions = [e for e in self.executions if e == "eager" or self.device != "cpu"]
        return list(itertools.product(executions, self.caches))


def is_out_of_memory(error: BaseException) -> bool:
    """True for the errors by which memory was refused, whoever raised it."""
    known = (MemoryError, OutOfMemoryError, torch.OutOfMemoryError)
    return isinstance(error, known) or any(text in str(error).lower() for text in _MEMORY_TEXTS)


@dataclass
class Right:
    """The kernels of a call that may be timed."""

    prepared: dict[str, Any] = field(default_factory=dict)  # kernel id -> prepared call
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)  # difference and what is allowed
    left: dict[str, str] = field(default_factory=dict)  # kernels that were not timed, and why
    wrong: dict[str, str] = field(default_factory=dict)
    by: str = "reference"  # or "majority": there is no reference to trust


def right_kernels(call: sides.Call, settings: Settings, about_to: Callable[[str], None]) -> Right:
    """Runs each kernel once and compares its results: with the reference, or with each other's."""
    found, results = Right(), dict[str, list[torch.Tensor]]()
    wanted = gate.trusted_reference(call.name, call.arguments)
    for kernel in call.kernels:
        if why := settings.denied.get(f"{call.name} {kernel}"):
            found.left[kernel] = why
            continue
        about_to(kernel)
        try:
            got = gate.results_of(call.name, call.arguments, functools.partial(call.run, kernel))
            if settings.device != "cpu":
                torch.cuda.synchronize()
            if wanted is None:
                results[kernel] = got
            elif problem := gate.check(call.name, got, wanted, call.dtype):
                found.wrong[kernel] = problem
                continue
            else:
                found.errors[kernel] = gate.error_of(got, wanted, call.dtype)
            found.prepared[kernel] = call.prepared(kernel)
        except (LayerZeroError, RuntimeError, TypeError, ValueError, MemoryError) as error:
            if "CUDA error" in str(error):
                raise  # the device is lost for this process
            found.left[kernel] = OUT_OF_MEMORY if is_out_of_memory(error) else sides.short(error)
    about_to("")
    if wanted is None:
        found.by = "majority"
        agree, why_not = gate.majority(results, call.dtype)
        found.wrong |= why_not
        found.prepared = {kernel: p for kernel, p in found.prepared.items() if kernel in agree}
    return found


def serving(
    call: sides.Call, clock: Clock, default: str, winner: str, rounds: int, beat: Callable[[], None]
) -> tuple[Ratio, Rounds]:
    """Returns how many times as long ordinary calls of the winner take as those of the default, as a program makes them."""
    function = getattr(lz, call.name)
    both = {k: Side(functools.partial(function, **call.arguments, kernel=k)) for k in (default, winner)}
    for side in both.values():
        beat()
        clock.prepare(side)
    found = core.in_rounds(clock, both, max(rounds // 2, core.LEAST_ROUNDS), default, seed=3, beat=beat)
    return found.ratio(winner, default), found


def tune_call(
    name: str, line: str, settings: Settings, about_to: Callable[[str], None] = lambda kernel: None
) -> list[dict[str, Any]]:
    """Returns a result for each mode, with its records: see result_of(). `about_to(kernel)` is called before a kernel runs
    for the first time, and with "" when what runs has run before."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = sides.call_of(name, arguments_on(settings.device, name, line))
        right = right_kernels(call, settings, about_to)
        default = _default(call, right)
        found = []
        for execution, cache in settings.modes() if default else ():
            found.append(_tune_mode(call, right, default, settings, line, (execution, cache), about_to))
        return [one for one in found if one is not None] or [_nothing(call, right, line)]


def _default(call: sides.Call, right: Right) -> str:
    """Returns the kernel that priorities choose among those that are right, whatever was measured before."""
    if not right.prepared:
        return ""
    ranked = [c for c in _by_priority(call) if c in right.prepared]
    return ranked[0] if ranked else next(iter(right.prepared))


def _by_priority(call: sides.Call) -> Iterator[str]:
    report = lz.explain(call.name, **call.arguments)
    admitted = [c for c in report.candidates if c.admissible and not c.reference]

    def score(candidate: Any) -> tuple[float, float, str]:
        terms = sum(term.value for term in candidate.terms if term.name != "measured")
        priority = next((term.value for term in candidate.terms if term.name == "priority"), 0.0)
        return -terms, -priority, candidate.kernel_id

    for candidate in sorted(admitted, key=score):
        yield candidate.kernel_id


def _tune_mode(
    call: sides.Call,
    right: Right,
    default: str,
    settings: Settings,
    line: str,
    mode: tuple[str, str],
    about_to: Callable[[str], None],
) -> dict[str, Any] | None:
    (execution, cache), clock = mode, Clock.of(settings.device)
    turns = sides.turns_of(call.tensors, cache == "cold", clock.kind)
    if cache == "cold" and len(turns) == 1:
        return None  # it is larger than the caches: warm is cold
    those: dict[str, Side] = {}
    left = dict(right.left)
    for kernel, prepared in right.prepared.items():
        if execution == "graph" and kernel not in call.in_graphs:
            left[kernel] = "not safe in CUDA graphs"
            continue
        side = sides.side_of(prepared, turns, execution == "graph")
        if isinstance(side, Side):
            those[kernel] = side
        else:
            left[kernel] = side
    if not those:
        return None
    if default not in those:
        default = next(kernel for kernel in _by_priority(call) if kernel in those)
    verdict = core.compare(
        clock, those, default, settings.rounds, seed=settings.seed, about_to=about_to, until=settings.until
    )
    served = None
    if execution == "eager" and verdict.winner != default:
        served, rounds = serving(call, clock, default, verdict.winner, settings.rounds, functools.partial(about_to, ""))
        if served.value > 1 + max(core.LEAST_GAIN, 2 * rounds.spread(default)):
            verdict.refused = f"{verdict.winner} is slower when a program calls it"
            verdict.winner = default
    return result_of(call, right, left, line, mode, those, verdict, served, settings)


def _nothing(call: sides.Call, right: Right, line: str) -> dict[str, Any]:
    """Returns the result of a call that no kernel but references serves."""
    return {
        "name": call.name,
        "line": line,
        **call.about,
        "execution": None,
        "cache_state": None,
        "default": "",
        "winner": "",
        "kernels": [],
        "left": right.left,
        "wrong": right.wrong,
        "checked_by": right.by,
        "records": [],
    }


def result_of(
    call: sides.Call,
    right: Right,
    left: dict[str, str],
    line: str,
    mode: tuple[str, str],
    those: dict[str, Side],
    verdict: Verdict,
    served: Ratio | None,
    settings: Settings,
) -> dict[str, Any]:
    """Returns what was found as plain data: every kernel with its times, fastest first, the default, the winner with its
    expected gain over the default, and the records that make selection choose so."""
    kernels = sorted((_kernel(k, those[k], verdict, right) for k in those), key=lambda row: row["us"])
    ratio = verdict.ratios[verdict.winner]
    result = {
        "name": call.name,
        "line": line,
        **call.about,
        "execution": mode[0],
        "cache_state": mode[1],
        "default": verdict.default,
        "winner": verdict.winner,
        "confidence": verdict.confidence,
        "gain": 1 / ratio.value - 1 if verdict.winner != verdict.default else 0.0,
        "gain_low": 1 / ratio.high - 1 if verdict.winner != verdict.default else 0.0,
        "gain_high": 1 / ratio.low - 1 if verdict.winner != verdict.default else 0.0,
        "spread": verdict.spread,
        "refused": verdict.refused,
        "confirmed": verdict.confirmed.value if verdict.confirmed else None,
        "served": served.value if served else None,
        "checked_by": right.by,
        "kernels": kernels,
        "left": left,
        "wrong": right.wrong,
    }
    return result | {"records": records.of_result(result, settings.columns)}


def _kernel(kernel: str, side: Side, verdict: Verdict, right: Right) -> dict[str, Any]:
    final = kernel in verdict.finals.samples
    us = verdict.finals.samples[kernel] if final else verdict.screened[kernel]
    low, high = records.interval(us)
    ratio = verdict.ratios.get(kernel)
    error, bound = right.errors.get(kernel, (None, None))
    return {
        "kernel_id": kernel,
        "us": statistics.median(us),
        "low_us": low,
        "high_us": high,
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "host_us": statistics.median(verdict.finals.host[kernel]) if final else None,
        "first_us": side.first_us,
        "final": final,
        "max_error": error if error is None or math.isfinite(error) else None,
        "error_bound": bound,
        "samples": us,
    }
