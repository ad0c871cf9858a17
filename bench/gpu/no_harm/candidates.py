"""Every installed kernel of a case's call in turns, as device time: which one deserves the call, and by how much."""

import contextlib
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import layerzero as lz
import torch
from case import Case

BOUND = 6e-2  # torch's expressions round logits and weights to 16 bits; tests/gpu compares with FP64


def called(case: Case) -> Iterator[tuple[str, str]]:
    """Yields the operation and the kernel of each LayerZero call of the case, from torch.profiler's events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        case.ours()
    for event in profile.events():
        if event.name.startswith("layerzero::"):
            operation, _, kernel = event.name.removeprefix("layerzero::").partition("[")
            yield operation.strip(), kernel.rstrip("]")


def kernels_of(operation: str) -> list[str]:
    """Returns the kernels that could run here, without references, which copy to the CPU."""
    rows = [
        k for k in lz.list_kernels(operation) if k.usable is not False
    ]  # None: a library that no call has needed yet
    rows = [k for k in rows if not k.reference and k.platform in ("cuda", "any")]
    return list(dict.fromkeys(k.kernel_id for k in rows))


def times_of_kernels(
    case: Case, rounds: int, difference: Callable, captured: Callable, seconds: Callable, calls: int
) -> dict[str, Any]:
    """Returns the median device microseconds of each kernel and of torch's expression ("theirs"), and why others have none.

    `captured` returns a graph of `calls` calls, None if there can be none.
    """
    operation, chosen = next(called(case))
    graphs, left = {}, {}
    wanted = case.theirs()
    for kernel in kernels_of(operation):
        with warnings.catch_warnings(), lz.policy(locks={operation: kernel}):
            warnings.simplefilter("ignore")
            try:
                result = case.ours()
                torch.cuda.synchronize()
                if case.checked and (off := difference(result, wanted)) > BOUND:
                    left[kernel] = f"differs by {off:.3g}"
                    continue
                graph = captured(case.ours)
            except Exception as error:
                left[kernel] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
                continue
        if graph is None:
            left[kernel] = "not captured"
        else:
            graphs[kernel] = graph
    if theirs := captured(case.theirs):
        graphs["theirs"] = theirs
    samples = {name: [] for name in graphs}
    counts = {name: max(1, min(2000, int(0.003 / max(seconds(g.replay, 2), 1e-6)))) for name, g in graphs.items()}
    for number in range(rounds):
        for name in list(graphs) if number % 2 else reversed(list(graphs)):
            samples[name].append(seconds(graphs[name].replay, counts[name]))
    times = {name: statistics.median(values) * 1e6 / calls for name, values in samples.items()}
    return {"operation": operation, "case": case.label, "chosen": chosen, "us": times, "left": left}


def line(row: dict[str, Any]) -> str:
    order = sorted(row["us"].items(), key=lambda item: item[1])
    return f"{row['operation']}: {row['case']} [{row['chosen']}] " + ", ".join(f"{k} {us:.1f}" for k, us in order)


def all_cases(cases: Iterator[Case], **how: Any) -> list[dict[str, Any]]:
    found = []
    for case in cases:
        try:
            found.append(times_of_kernels(case, **how))
            print(line(found[-1]), file=sys.stderr, flush=True)
        except Exception as error:
            found.append({"operation": case.operation, "case": case.label, "error": f"{type(error).__name__}: {error}"})
            print(found[-1], file=sys.stderr, flush=True)
            with contextlib.suppress(Exception):
                torch.cuda.synchronize()
    return found
