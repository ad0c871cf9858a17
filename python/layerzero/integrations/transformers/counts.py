"""The report of `kernelize`, and its counters, which are updated while the model runs."""

import collections
import dataclasses
from typing import Any

import torch

from layerzero.integrations.transformers.layers import Attention

_PART = "_layerzero_part"
_WITHIN = "_layerzero_within"  # of a holder of layers: (entry, how many of its modules a run of the program replaces)


@dataclasses.dataclass
class KernelizeReport:
    """What `kernelize` did. The counters in `replaced` are updated while the model runs.

    replaced: part -> {"count": number of modules, "operation", "calls": how often the operation was called for them,
    "in_program": how often a program ran instead of one of them}. A program of layers has {"count", "operation", "calls",
    `aside`: {why the model's own code ran instead: how often}}; on a CUDA device also "captured": decode steps that ran as
    CUDA graphs, "not_captured": {why a step did not: how often}, "chosen": steps that chose the next tokens of `generate` themselves,
    "chosen_outside": {why a call of `generate` or the rest of one did not let them: how often} and "products": {"batch x length" of a step: {"us": {variant:
    microseconds of a replay}, "taken": the fastest variant, "variant": its {part of the step: kernel}}}, where the variant "selected" has the kernels of
    ordinary calls
    left: part -> why the model's own code still computes it
    weights: what weights= did, or None
    """

    replaced: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    left: dict[str, str] = dataclasses.field(default_factory=dict)
    weights: Any = None  # a weights.WeightsReport

    def add(self, part: str, operation: str) -> dict[str, Any]:
        """Returns the entry of a part, with one more module."""
        entry = self.replaced.setdefault(part, {"count": 0, "operation": operation, "calls": 0, "in_program": 0})
        entry["count"] += 1
        return entry

    def add_program(self, kind: str, operation: str) -> dict[str, Any]:
        """Returns the entry for one more program; the caller adds it to the report and raises `count` when the program is proven."""
        return self.replaced.get(kind) or {"count": 0, "operation": operation, "calls": 0, "aside": {}}

    def start_counting(self) -> None:
        """Resets the counters: so far they counted trials."""
        for entry in self.replaced.values():
            entry["calls"] = 0
            for counted in ("captured", "not_captured", "chosen", "chosen_outside", "products"):
                entry.pop(counted, None)
            if "aside" in entry:
                entry["aside"].clear()
            else:
                entry["in_program"] = 0

    def __str__(self) -> str:
        lines = [f"{part}: {e['count']} through {e['operation']}, {_counted(e)}" for part, e in self.replaced.items()]
        lines += [f"{part}: left, {reason}" for part, reason in self.left.items()]
        lines += [] if self.weights is None else [str(self.weights)]
        return "\n".join(lines)


def _counted(entry: dict[str, Any]) -> str:
    found = [f"{entry['calls']} calls"] if entry["calls"] else []
    found += [f"{entry['in_program']} in a program"] if entry.get("in_program") else []
    found += [f"{entry['captured']} as CUDA graphs"] if entry.get("captured") else []
    found += [f"{entry['chosen']} chose the next tokens"] if entry.get("chosen") else []
    outside = entry.get("chosen_outside", {}).items()
    found += [f"{times} calls of generate chose tokens outside of steps: {reason}" for reason, times in outside]
    found += [f"{times} call by call: {reason}" for reason, times in entry.get("not_captured", {}).items()]
    found += [f"stepped aside {times} times: {reason}" for reason, times in entry.get("aside", {}).items()]
    return ", ".join(found) or "not called yet"


def count_call(module: Any, part: str = _PART) -> None:
    """Counts a call in the report. A module without this part is only being tried. Nothing is counted within torch.compile, which
    would compile again for each number.
    """
    entry = module.__dict__.get(part)
    if entry is not None and not torch.compiler.is_compiling():
        entry["calls"] += 1


def count_program(holder: Any) -> None:
    """Counts a run of the program of a holder's layers, and of the parts in whose place it ran."""
    count_call(holder)
    for entry, number in holder.__dict__.get(_WITHIN, ()):
        entry["in_program"] += number


def count(holder: Any, what: str, reason: str | None = None) -> None:
    """Counts one more of a holder's counters, see KernelizeReport; with a reason, one more of those for this reason."""
    entry = holder.__dict__.get(_PART)
    if entry is None:
        return
    counters, key = (entry, what) if reason is None else (entry.setdefault(what, {}), reason)
    counters[key] = counters.get(key, 0) + 1


def count_aside(holder: Any, plan: Any, reason: str) -> None:
    """Counts a call that the program did not serve."""
    plan.count_aside(reason)
    count(holder, "aside", reason)


def count_captured(holder: Any, measured: dict[str, dict[str, Any]], reason: str | None) -> None:
    """Counts a step by the reason that `CapturedSteps.run` returned, and notes what was measured of steps' products so far."""
    if measured and _PART in holder.__dict__:
        holder.__dict__[_PART]["products"] = measured
    if reason is not None:
        count(holder, *(("not_captured", reason) if reason else ("captured",)))


def find_parts(holder: Any, plan: Any, attention: dict[str, Any] | None) -> None:
    """Notes for which parts in the report the program of a holder runs. attention: the entry of that, which is of a model."""
    modules = {*plan.further_modules(holder), *getattr(holder, plan.stack.name).modules()}
    layers = plan.stack.layers
    number = sum(isinstance(layer.attention, Attention) + (layer.cross is not None) for layer in layers)
    found = [*(module.__dict__.get(_PART) for module in modules), *[attention] * number]
    entries = {id(entry): entry for entry in found if entry is not None and "in_program" in entry}
    numbers = collections.Counter(map(id, found))
    holder.__dict__[_WITHIN] = [(entry, numbers[key]) for key, entry in entries.items()]
