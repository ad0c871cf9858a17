"""Benchmark of model families through LayerZero: correctness, replaced parts, and speed.

Models are small with random weights, f32 by default. A family is wrong if its logits or greedy tokens differ from the
model's own beyond `families.F32_ERROR` and `families.BF16_RATIO`. Ratios are time of Transformers' default path over
ours, medians over interleaved rounds; `aa_spread` is the median distance from 1 of the default path over itself.
"""

import collections
import copy
import statistics
import time

import torch
from torch.overrides import TorchFunctionMode

from layerzero import _layerzero
from layerzero.bench.family_generation import WAYS, Generation, ways_of
from layerzero.integrations.transformers import kernelize, unkernelize
from layerzero.models.families import (
    BF16_RATIO,
    F32_ERROR,
    FAMILIES,
    error,
    first_output,
    paddings_of,
)
from layerzero.models.family_sites import OPERATIONS, SITES

BARS = {"wrong": 0, "crashes": 0, "share_replaced": 0.9, "geomean_decoders": 1.1, "slower": 0}
REPEATS = 5  # forwards per timing
_NAMES = {function: name for name, function in _layerzero.ops.items()}


class OperationCalls(TorchFunctionMode):
    """Counts all operations that a forward calls."""

    def __init__(self):
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = _NAMES.get(func)
        if name is not None:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def wrong_in_f32(family):
    """Returns what differs from the model's own: logits for each padding, and logits after the undo."""
    model = family.build()
    examples = {padding: family.example(padding=padding) for padding in paddings_of(family)}
    expected = {padding: first_output(model, example) for padding, example in examples.items()}
    kernelize(model)
    errors = {padding: error(first_output(model, example), expected[padding]) for padding, example in examples.items()}
    unkernelize(model)
    wrong = [
        f"f32, {padding or 'no'} padding: logits {e:.1e} away, at most {F32_ERROR:.0e}"
        for padding, e in errors.items()
        if not e <= F32_ERROR
    ]
    same = all(torch.equal(first_output(model, example), expected[padding]) for padding, example in examples.items())
    return wrong if same else [*wrong, "unkernelize: logits are not what they were"]


def wrong_in_bf16(family):
    """Compares in bf16, with both sides measured against f32."""
    wrong = []
    model = family.build(torch.bfloat16)
    for padding in paddings_of(family):
        example = family.example(torch.bfloat16, padding)
        exact = first_output(copy.deepcopy(model).float(), family.example(padding=padding))
        own = error(first_output(model, example), exact)
        kernelize(model)
        ours = error(first_output(model, example), exact)
        unkernelize(model)
        if not ours <= BF16_RATIO * own:
            wrong.append(f"bf16, {padding or 'no'} padding: error {ours / own:.2f} times the model's own")
    return wrong


def wrong_in_generation(family, ways=None):
    """Returns the ways in which greedy generation produces other tokens."""
    wrong = []
    for way in ways_of(family) if ways is None else ways:
        generation, model = Generation(family, way), family.build()
        expected = generation.run(model, ours=False)
        kernelize(model)
        if not torch.equal(generation.run(model, ours=True), expected):
            wrong.append(f"greedy generation, {way}: other tokens")
    return wrong


def sites_of(family, counts):
    """Returns {kind: {"listed", "replaceable", "replaced", "excluded"}}, from the operations that one forward called."""
    sites, result = SITES[family.name], {}
    for kind, operations in OPERATIONS.items():
        replaceable = sites.replaceable(kind)
        called = sum(counts[operation] for operation in operations)
        excluded = [a.reason for a in sites.excluded if a.kind == kind]
        result[kind] = {
            "listed": sites.listed(kind),
            "replaceable": replaceable,
            "replaced": min(called, replaceable),
            "excluded": excluded,
        }
    return result


def _least_s(call, repeats):
    """Returns the minimum time of a few calls, which excludes other load of the machine."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _times(own, ours, rounds, repeats=REPEATS):
    """Times rounds of default path, ours, default path; each call of ours is paired with its neighbors."""
    samples = []
    for number in range(-2, rounds):  # two rounds warm up
        times = [_least_s(call, repeats) for call in (own, ours, own)]
        if number >= 0:
            samples.append(times)
    return {
        "own_us": statistics.median(before for before, _, _ in samples) * 1e6,
        "layerzero_us": statistics.median(between for _, between, _ in samples) * 1e6,
        "ratio": statistics.median((before + after) / 2 / between for before, between, after in samples),
        "aa_spread": statistics.median(abs(after / before - 1) for before, _, after in samples),
    }


def _generation_times(family, own, ours, rounds):
    """Returns {way: times} of the ways in which the family generates."""
    times = {}
    for way in ways_of(family):
        generation = Generation(family, way)
        run = generation.run
        times[way] = _times(
            lambda run=run: run(own, ours=False), lambda run=run: run(ours, ours=True), rounds, repeats=1
        )
    return times


def examine(family, rounds):
    """Returns one family's row. An exception becomes its result `crash`, and the other families continue."""
    try:
        own, ours, example = family.build(), family.build(), family.example()
        report = kernelize(ours)
        with torch.inference_mode():
            ours(**example)
            replaced = {part: entry["operation"] for part, entry in report.replaced.items() if entry["calls"]}
            with OperationCalls() as calls:  # in this mode a block runs part by part
                ours(**example)
            times = _times(lambda: own(**example), lambda: ours(**example), rounds)
        return {
            "replaced": replaced,
            "left": dict(report.left),
            "sites": sites_of(family, calls.counts),
            **times,
            "generation": _generation_times(family, own, ours, max(1, rounds // 4)),
            "wrong": wrong_in_f32(family) + wrong_in_bf16(family) + wrong_in_generation(family),
            "crash": None,
        }
    except Exception as problem:
        none = dict.fromkeys(("own_us", "layerzero_us", "ratio", "aa_spread"))
        sites = sites_of(family, collections.Counter())
        crash = f"{type(problem).__name__}: {problem}"
        return {"replaced": {}, "left": {}, "sites": sites, **none, "generation": {}, "wrong": [], "crash": crash}


def totals_of(rows):
    """Returns totals over {family: row}."""
    sites = [site for row in rows.values() for site in row["sites"].values()]
    replaceable = sum(site["replaceable"] for site in sites)
    replaced = sum(site["replaced"] for site in sites)
    timed = {name: row for name, row in rows.items() if row["ratio"] is not None}
    decoders = [timed[family.name]["ratio"] for family in FAMILIES if family.inputs == "ids" and family.name in timed]
    ways = {(name, way): times for name, row in rows.items() for way, times in row["generation"].items()}
    ratios = {way: [times["ratio"] for (_, of), times in ways.items() if of == way] for way in WAYS}
    return {
        "wrong": sum(len(row["wrong"]) for row in rows.values()),
        "crashes": sum(row["crash"] is not None for row in rows.values()),
        "replaceable": replaceable,
        "replaced": replaced,
        "share_replaced": replaced / replaceable,
        "geomean_decoders": statistics.geometric_mean(decoders) if decoders else None,
        "slower": [name for name, row in timed.items() if row["ratio"] < 1 - row["aa_spread"]],
        "geomean_generation": {way: statistics.geometric_mean(found) for way, found in ratios.items() if found},
        "slower_generation": [f"{name}, {way}" for (name, way), t in ways.items() if t["ratio"] < 1 - t["aa_spread"]],
    }


def within_bars(totals):
    """True if the totals meet the project's bars."""
    geomean = totals["geomean_decoders"]
    return (
        totals["wrong"] <= BARS["wrong"]
        and totals["crashes"] <= BARS["crashes"]
        and totals["share_replaced"] >= BARS["share_replaced"]
        and (geomean is None or geomean >= BARS["geomean_decoders"])
        and len(totals["slower"]) <= BARS["slower"]
    )


def run(families=FAMILIES, rounds=31, on_step=None):
    """Returns {"families": {name: row}, "totals", "bars", "ok", ...} for JSON; `on_step(name)` after each family.

    If interrupted after the first family, it returns the results so far, with "interrupted": true, and is not ok.
    """
    import transformers

    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    rows, interrupted = {}, {}
    try:
        for family in families:
            rows[family.name] = examine(family, rounds)
            if on_step:
                on_step(family.name)
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = {"interrupted": True}
    finally:
        transformers.logging.set_verbosity(level)
    totals = totals_of(rows)
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "families": rows,
        "totals": totals,
        "bars": BARS,
        "ok": within_bars(totals) and not interrupted,
        **interrupted,
    }
