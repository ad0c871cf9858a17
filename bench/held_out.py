"""Whether tuned times serve shapes that were not tuned: some shapes are tuned, others judge what their times choose.

  python bench/held_out.py --every 4 --json bench/results/held-out-<machine>.json

Calls of an operation that differ in sizes alone are ordered by the product of their sizes. Every second one and the largest
are held out: "between" if tuned ones are on both sides, else "beyond". Where the tuned times choose another kernel for a held-out
call than priorities do, both are timed, in turns. Exit code 1: one is slower than the untuned choice beyond the noise of the same
kernel or could not be timed, a call could not be tuned, or nothing was judged.
"""

import argparse
import collections
import dataclasses
import math
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
import warnings

import torch
from common import finish
from layerzero import _layerzero, perf_records
from layerzero.bench import regret
from layerzero.bench.operations import Case, all_cases
from layerzero.bench.ranking import choice_of, use
from layerzero.errors import LayerZeroError
from layerzero.tuning import measure, sides
from layerzero.tuning.environment import device_columns

FAILURES = (LayerZeroError, RuntimeError, ValueError, TypeError)  # of a call that cannot be tuned or timed
WHERE = ("between", "beyond")
_SHAPE = re.compile(r"\[[^\]]*\]")


@dataclasses.dataclass(frozen=True)
class HeldOut:
    case: Case
    where: str  # one of WHERE


def volume(line: str) -> int:
    """Returns the product of all sizes of a call."""
    return math.prod(int(n) for shape in _SHAPE.findall(line) for n in re.findall(r"\d+", shape))


def split(cases: list[Case], every: int = 1) -> tuple[list[Case], list[HeldOut]]:
    """Returns the calls that are tuned, and those that are held out."""
    kinds: dict[tuple[str, str], list[Case]] = collections.defaultdict(list)
    for case in cases:
        kinds[case.operation, _SHAPE.sub("[]", case.line)].append(case)
    tuned: list[Case] = []
    held: list[HeldOut] = []
    for those in list(kinds.values())[::every]:
        those.sort(key=lambda c: volume(c.line))
        out = {i for i in range(len(those)) if i % 2 or (i == len(those) - 1 and i > 0)}
        kept = [i for i in range(len(those)) if i not in out]
        tuned += [those[i] for i in kept]
        held += [HeldOut(those[i], "between" if kept[0] < i < kept[-1] else "beyond") for i in sorted(out)]
    return tuned, held


def tune(cases: list[Case], settings: measure.Settings) -> tuple[list[dict], dict[str, str]]:
    """Returns the records of calls, and why others were not measured. They go through a database of their own, not the user's:
    calls that differ in what no key has (strides) have one record there, the last."""
    failed = {}
    with tempfile.TemporaryDirectory(prefix="lz-held-out-") as folder:
        database = pathlib.Path(folder) / "perfdb.sqlite"
        for case in cases:
            use([])
            try:
                results = measure.tune_call(case.operation, case.line, settings)
            except FAILURES as error:
                failed[f"{case.operation} {case.line}"] = sides.short(error)
                continue
            perf_records.write_database([row for result in results for row in result["records"]], database)
        return perf_records.read_database(database), failed


def compared(case: Case, chosen: str, default: str, rounds: int) -> dict:
    """Returns the time of the chosen kernel over that of the default, and the noise of the same kernel; or why there is none."""
    rows = [{"kernel_id": kernel, "final": True} for kernel in (default, chosen)]
    result = {"kernels": rows, "default": default, "cache_state": "warm", "execution": "eager"}
    try:
        _, found = regret.again(case, result, "cpu", rounds)
    except FAILURES as error:
        return {"ratio": None, "noise": None, "why": sides.short(error)}
    if missing := sorted({chosen, default} - found.samples.keys()):
        return {"ratio": None, "noise": None, "why": f"no samples of {', '.join(missing)}"}
    pairs = zip(found.samples[chosen], found.samples[default], strict=True)
    return {"ratio": statistics.median(a / b for a, b in pairs), "noise": regret.noise_of(found, default)}


def judge(held: list[HeldOut], records: list[dict], rounds: int) -> list[dict]:
    cells = []
    for one in held:
        case = one.case
        use([])
        default = choice_of(case.operation, case.line, "cpu")
        use(records)
        chosen = choice_of(case.operation, case.line, "cpu")
        cell = {"operation": case.operation, "call": case.line, "where": one.where, "untuned": default, "tuned": chosen}
        same = {"ratio": 1.0, "noise": 0.0}
        cells.append(cell | (same if chosen == default else compared(case, chosen, default, rounds)))
    return cells


def summary(cells: list[dict]) -> dict:
    """Returns, for cells of one kind, how many choices differ and what they gain or cost."""
    other = [c for c in cells if c["tuned"] != c["untuned"]]
    known = [c["ratio"] for c in cells if c["ratio"] is not None]
    timed = [c["ratio"] for c in other if c["ratio"] is not None]
    return {
        "calls": len(cells),
        "other_choice": len(other),
        "not_timed": len(cells) - len(known),
        "mean_ratio": statistics.fmean(known) if known else None,
        "worst_ratio": max(timed, default=None),
        "best_ratio": min(timed, default=None),
    }


def worse(cells: list[dict]) -> list[dict]:
    return [c for c in cells if c["ratio"] is not None and c["ratio"] > 1 + c["noise"]]


def passes(result: dict) -> bool:
    """True if calls were judged, all of them could be tuned and timed, and none is worse than untuned."""
    wheres = [result[where] for where in WHERE]
    judged = sum(w["calls"] for w in wheres) > 0 and result["tuned_calls"] > 0
    return judged and not (any(w["not_timed"] for w in wheres) or result["failed"] or result["worse_than_untuned"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", help="flat names, comma-separated; default: all")
    parser.add_argument("--every", type=int, default=1, help="each N-th kind of calls alone")
    parser.add_argument("--rounds", type=int, default=20, help="at least 1")
    parser.add_argument("--json", type=pathlib.Path, help="write the result to this file")
    given = parser.parse_args()
    start = time.monotonic()
    names = given.operations.split(",") if given.operations else None
    tuned, held = split([c for c in all_cases(names) if not c.cold], given.every)
    settings = measure.Settings(device="cpu", rounds=given.rounds)
    settings.columns, settings.caches = device_columns("cpu"), ("warm",)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        records, failed = tune(tuned, settings)
        cells = judge(held, records, given.rounds)
    result = {
        "device_id": _layerzero.device_id("cpu"),
        "layerzero": _layerzero.build_id()[1],
        "torch": torch.__version__,
        "rounds": given.rounds,
        "load_average": os.getloadavg(),
        "tuned_calls": len(tuned) - len(failed),
        "failed": failed,
        **{where: summary([c for c in cells if c["where"] == where]) for where in WHERE},
        "worse_than_untuned": worse(cells),
        "cells": cells,
        "seconds": round(time.monotonic() - start, 1),
    }
    result["ok"] = passes(result)
    return finish(result, given.json)


if __name__ == "__main__":
    sys.exit(main())
