"""What is concluded from measured calls: rankings, records, which of them a prior gets, the regret of selection.

Rounds are dealt to three parts: records for a judgement come from the first, a call's records are kept only if what they
choose is not slower than the default choice on the second, and the regret (time of the chosen kernel / time of the
fastest by the first two) is taken on the third. The prior that is written has all rounds.
"""

import json
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from layerzero import _layerzero
from layerzero.tuning.draw import described
from layerzero.tuning.records import interval, kernel_row, record

PARTS = 3
FIT, CHECK, JUDGE = range(PARTS)
FOLDS = 5  # folds of held-out calls
LEAST = 0.02  # smaller differences are noise between runs


@dataclass
class Ranking:
    """All kernels of one call, either called one by one or replayed in a CUDA graph."""

    operation: str
    line: str
    execution: str  # eager, graph
    cold: bool = False  # every call reads memory that is not in the L2 cache
    about: dict[str, Any] = field(default_factory=dict)  # "operation" (the id), "axes", "options", "dtype", "bytes"
    samples: dict[str, dict[int, float]] = field(default_factory=dict)  # kernel id -> round -> us
    again: dict[int, float] = field(default_factory=dict)  # the first kernel again
    host: dict[str, float] = field(default_factory=dict)  # us of the host's part of a call
    left: dict[str, str] = field(default_factory=dict)  # kernels that were not timed, and why
    wrong: dict[str, str] = field(default_factory=dict)  # kernels whose result is wrong
    default: str = ""  # the kernel that priorities choose
    chosen: str = ""  # the kernel that the written records choose
    has_entry: bool = True  # False: the prior keeps to the default here
    regrets: dict[str, float] = field(default_factory=dict)  # by how the kernel was chosen

    def us(self, kernel: str, parts: Iterable[int] = range(PARTS)) -> float:
        """Returns the median over the rounds of these parts."""
        wanted = set(parts)
        return statistics.median(us for number, us in self.samples[kernel].items() if number % PARTS in wanted)

    def interval(self, kernel: str) -> tuple[float, float]:
        return interval(self.samples[kernel].values())

    def spread(self) -> float:
        """Returns the A/A spread: the median relative difference of the same kernel within a round."""
        first = next(iter(self.samples.values()))
        return statistics.median(abs(us / first[number] - 1) for number, us in self.again.items())

    def ratio(self, kernel: str, other: str, part: int) -> float:
        """Returns how many times as long `kernel` takes as `other`, paired by round."""
        a, b = self.samples[kernel], self.samples[other]
        return statistics.median(a[n] / b[n] for n in a.keys() & b.keys() if n % PARTS == part)

    def regret(self, kernel: str) -> float:
        best = min(self.samples, key=lambda k: self.us(k, (FIT, CHECK)))
        ratio = self.ratio(kernel, best, JUDGE)
        return ratio if ratio > 1 + max(LEAST, self.spread()) else 1.0


def records(rankings: Iterable[Ranking], parts: Iterable[int] = range(PARTS), **device: Any) -> list[dict[str, Any]]:
    """Returns the records of every call with several kernels; of one that keeps to its default, only the default's.

    `device`: columns "device_id", "sm_version" and what is known besides.
    """
    made, wanted = {}, set(parts)
    for r in rankings:
        if len(r.samples) < 2:
            continue
        for kernel, by_round in r.samples.items():
            if not r.has_entry and kernel != r.default:
                continue
            us = [value for number, value in by_round.items() if number % PARTS in wanted]
            columns = {"cache_state": "cold" if r.cold else "warm", "execution": r.execution, "timer": "cuda_event"}
            row = record(r.about, kernel_row(r.operation, kernel), us, **columns, **device)
            made[(kernel, r.execution, r.cold, *(str(row[k]) for k in ("operation", "dtype", "axes", "options")))] = row
    return list(made.values())


def use(rows: list[dict[str, Any]]) -> None:
    _layerzero.use_prior(json.dumps({"schema_version": "1.0", "records": rows}), "bench ops")


def choice(r: Ranking, device: str) -> str:
    """Returns the kernel that the call would run on a device by the records in force; nothing is read from it."""
    return choice_of(r.operation, r.line, device, r.execution == "graph")


def choice_of(operation: str, line: str, device: str, capturing: bool = False) -> str:
    """Returns the kernel that a case's call would run on a device by the records in force; nothing is read from it."""
    call = described(operation, line)
    text = _layerzero.explain(_layerzero.ops[operation], (), call, device, True, capturing)
    return json.loads(text)["kernel_id"] or ""


def drop_slower_entries(rankings: list[Ranking], device: str, **columns: Any) -> None:
    """Sets has_entry: a call whose records choose what is slower than its default keeps to the default."""
    use(records(rankings, (FIT,), **columns))
    for r in rankings:
        chosen = choice(r, device)
        if chosen == r.default or not {chosen, r.default} <= r.samples.keys():
            continue
        r.has_entry = r.ratio(chosen, r.default, CHECK) <= 1 + max(LEAST, r.spread())


def judge(rankings: list[Ranking], device: str, **columns: Any) -> dict[str, dict[str, Any]]:
    """Returns the regret by mode (eager, graph), then by how kernels were chosen: "priorities" alone, "measured" with
    records of the same calls, "held_out" with those of other calls. Fills in default, chosen, has_entry and regrets."""
    rivals = [r for r in rankings if len(r.samples) > 1]
    chosen: dict[str, dict[int, str]] = {"priorities": {}, "measured": {}, "held_out": {}}
    try:
        use([])
        for r in rankings:
            r.default = choice(r, device)
        chosen["priorities"] = {id(r): r.default for r in rivals}
        drop_slower_entries(rivals, device, **columns)
        use(records(rivals, (FIT,), **columns))
        chosen["measured"] = {id(r): choice(r, device) for r in rivals}
        lines = sorted({(r.operation, r.line) for r in rivals})
        random.Random(7).shuffle(lines)
        for fold in range(FOLDS):
            out = set(lines[fold::FOLDS])
            use(records([r for r in rivals if (r.operation, r.line) not in out], (FIT,), **columns))
            chosen["held_out"] |= {id(r): choice(r, device) for r in rivals if (r.operation, r.line) in out}
        use(records(rivals, **columns))
        for r in rankings:
            r.chosen = choice(r, device)
    finally:
        _layerzero.use_prior()
    for r in rivals:
        r.regrets = {how: r.regret(by[id(r)]) for how, by in chosen.items() if by[id(r)] in r.samples}
    modes = dict.fromkeys(r.execution for r in rivals)
    return {mode: {how: _summary(rivals, mode, how) for how in chosen} for mode in modes}


def p99(ordered: Sequence[float]) -> float:
    """Returns the 99th percentile of ascending values by nearest rank: of fewer than a hundred the largest."""
    return ordered[math.ceil(0.99 * len(ordered)) - 1]


def _summary(rivals: list[Ranking], mode: str, how: str) -> dict[str, Any]:
    judged = [r for r in rivals if r.execution == mode and how in r.regrets]
    if not judged:
        return {}
    ordered = sorted(judged, key=lambda r: r.regrets[how])
    regrets = [r.regrets[how] for r in ordered]
    return {
        "mean": statistics.fmean(regrets),
        "p99": p99(regrets),
        "max": regrets[-1],
        "worst": f"{ordered[-1].operation} {ordered[-1].line}",
        "calls": len(regrets),
    }


def row(r: Ranking) -> dict[str, Any]:
    """Returns a ranking as plain data: every kernel with its interval, fastest first."""
    ranked = []
    for kernel in sorted(r.samples, key=r.us):
        low, high = r.interval(kernel)
        one = {"kernel_id": kernel, "us": r.us(kernel), "low_us": low, "high_us": high}
        ranked.append(one | {"rounds": len(r.samples[kernel]), "host_us": r.host.get(kernel)})
    return {
        "name": r.operation,
        "call": r.line,
        **r.about,
        "execution": r.execution,
        "cold": r.cold,
        "aa_spread": r.spread() if r.samples else None,
        "kernels": ranked,
        "left": r.left,
        "wrong": r.wrong,
        "default": r.default,
        "chosen": r.chosen,
        "has_entry": r.has_entry and len(r.samples) > 1,
        "regret": r.regrets,
    }
