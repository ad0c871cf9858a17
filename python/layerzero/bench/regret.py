"""What choices cost: the time of the kernel that is chosen over that of the fastest one, by priorities and by tuned records.

Each case is tuned, its records decide, and then every kernel is timed again, in other rounds: noise cannot win twice. A
difference within the noise of the same kernel counts as none; the report says how many were, and what they sum up to.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.bench.operations import Case
from layerzero.bench.ranking import choice_of, p99, use
from layerzero.errors import LayerZeroError
from layerzero.tuning import core, measure, sides
from layerzero.tuning.core import Clock, Rounds, Side
from layerzero.tuning.draw import arguments_on

HOW = ("priorities", "records")


def again(case: Case, result: dict[str, Any], device: str, rounds: int) -> tuple[sides.Call, Rounds]:
    """Returns the call and new times of its finalists and its default."""
    clock = Clock.of(device)
    call = sides.call_of(case.operation, arguments_on(device, case.operation, case.line))
    turns = sides.turns_of(call.tensors, result["cache_state"] == "cold", clock.kind)
    those: dict[str, Side] = {}
    for row in result["kernels"]:
        if row["final"] or row["kernel_id"] == result["default"]:
            side = sides.side_of(call.prepared(row["kernel_id"]), turns, result["execution"] == "graph")
            if isinstance(side, Side):
                clock.prepare(side)
                those[row["kernel_id"]] = side
    return call, core.in_rounds(clock, those, rounds, result["default"], seed=99)


def ratio_of(chosen: str, found: Rounds) -> float | None:
    """Returns time of the chosen kernel over that of the fastest, noise and all; None if it was not timed. The fastest is that
    of the first half of the rounds, the ratio that of the second, so that it may be below 1."""
    half = max(1, len(found.again) // 2)
    first = {name: statistics.median(us[:half]) for name, us in found.samples.items()}
    best = min(first, key=lambda name: first[name])
    if chosen not in found.samples:
        return None
    pairs = zip(found.samples[chosen][half:], found.samples[best][half:], strict=True)
    return statistics.median(a / b for a, b in pairs)


def noise_of(found: Rounds, default: str) -> float:
    """Returns the median relative difference between two times of the same kernel in a round."""
    return statistics.median(abs(b / a - 1) for a, b in zip(found.samples[default], found.again, strict=True))


def regret(chosen: str, found: Rounds, default: str) -> float:
    """Returns time of the chosen kernel over that of the fastest, 1 within noise."""
    ratio = ratio_of(chosen, found)
    return ratio if ratio is not None and ratio > 1 + noise_of(found, default) else 1.0


def _judge(case: Case, settings: measure.Settings, rounds: int) -> list[dict[str, Any]]:
    use([])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = measure.tune_call(case.operation, case.line, settings)
        cells = []
        for result in results:
            if len(result["kernels"]) < 2:
                continue
            use([])
            _, found = again(case, result, settings.device, rounds)
            capturing = result["execution"] == "graph"
            by = {"priorities": choice_of(case.operation, case.line, settings.device, capturing)}
            use(result["records"])
            by["records"] = choice_of(case.operation, case.line, settings.device, capturing)
            cell = {"operation": case.operation, "call": case.line, "execution": result["execution"]}
            cell |= {"cache_state": result["cache_state"], "kernels": len(result["kernels"]), "chosen": by}
            cell["regret"] = {how: regret(by[how], found, result["default"]) for how in HOW}
            cell |= {
                "ratio": {how: ratio_of(by[how], found) for how in HOW},
                "noise": noise_of(found, result["default"]),
            }
            cells.append(cell)
        return cells


def summary(cells: list[dict[str, Any]], how: str) -> dict[str, Any]:
    """Returns mean, median, p99, maximum and the worst cell. within_noise: cells whose ratio is above 1 and counts as 1, since
    it is within noise; "raw": the same numbers of the ratios themselves, with none below 1. not_timed: cells whose choice was
    no finalist, which count as 1 in both."""
    ordered = sorted(cells, key=lambda cell: cell["regret"][how])
    values = [cell["regret"][how] for cell in ordered]
    worst = ordered[-1]
    ratios = [cell["ratio"][how] for cell in cells]
    raw = sorted(max(1.0, ratio or 1.0) for ratio in ratios)
    return {
        "cases": len(cells),
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "p99": p99(values),
        "max": values[-1],
        "within_noise": sum(cell["regret"][how] == 1 and (cell["ratio"][how] or 0) > 1 for cell in cells),
        "not_timed": ratios.count(None),
        "raw": {"mean": statistics.fmean(raw), "median": statistics.median(raw), "p99": p99(raw), "max": raw[-1]},
        "worst": f"{worst['operation']} {worst['call']} ({worst['execution']}, {worst['cache_state']})",
    }


def run(
    cases: list[Case],
    rounds: int = 20,
    seconds: float | None = None,
    device: str = "cpu",
    on_step: Callable[..., None] | None = None,
) -> dict[str, Any]:
    """Returns the regret of every case with rivals. `seconds`: no case begins later. on_step: called after each case with its
    operation and its cells."""
    settings = measure.Settings(device=device, rounds=rounds)
    from layerzero.tuning.environment import device_columns, environment

    settings.columns = device_columns(device)
    state = environment(device)
    cells: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    ended: dict[str, Any] = {}
    start = time.monotonic()
    settings.until = None if seconds is None else start + seconds
    try:
        for number, case in enumerate(cases):
            if seconds is not None and time.monotonic() - start > seconds:
                ended = {"out_of_time": len(cases) - number}
                break
            settings.caches = ("cold",) if case.cold else ("warm",)
            try:
                of_case = _judge(case, settings, rounds)
            except (LayerZeroError, RuntimeError, ValueError, TypeError) as error:
                failed[f"{case.operation} {case.line}"] = sides.short(error)
                if "CUDA error" in str(error):
                    break
                of_case = []
            cells += of_case
            if on_step:
                on_step(case.operation, of_case)
    except KeyboardInterrupt:
        ended = {"interrupted": True}
    finally:
        _layerzero.use_prior()
    by_how = {how: summary(cells, how) for how in HOW} if cells else {}
    tuned = by_how.get("records", {})
    return {
        "device_id": settings.columns["device_id"],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "environment": state,
        "cases": tuned.get("cases", 0),
        "mean": tuned.get("mean"),
        "median": tuned.get("median"),
        "p99": tuned.get("p99"),
        "worst": tuned.get("worst"),
        "within_noise": tuned.get("within_noise"),
        "raw": tuned.get("raw"),
        "regret": by_how,
        "cells": cells,
        "failed": failed,
        "seconds": time.monotonic() - start,
        **ended,
    }
