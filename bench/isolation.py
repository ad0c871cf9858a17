"""What a call of a kernel in a worker costs above the same call in this process, on tensors in host memory.

    python bench/isolation.py --output bench/results/isolation-<machine>.json

The kernel is torch's `rms_norm`, called as the engine calls it. Each round times all ways in turn: twice in this process (the
difference of the two is the noise), in a worker, and in a worker with an input that is the result of a call before, which needs
no copy. Times are medians of all calls, in microseconds. The bar: at most 40 us above this process at 1 MiB. Where `load` is more
than the number of processors, waking a worker waits for other processes, and the numbers are of that machine at that time.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layerzero as lz
import torch
from layerzero.backends.torch.adapters import rms_norm
from layerzero.isolation import client

ADAPTER, BAR_US = "layerzero.backends.torch.adapters:rms_norm", 40
KIB = [4, 64, 1024, 16 * 1024]


def times(call: Callable[[], Any], calls: int) -> list[float]:
    """Returns the microseconds of each call."""
    found = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        found.append((time.perf_counter_ns() - start) / 1e3)
    return found


def row(kib: int, rounds: int, calls: int) -> dict[str, Any]:
    """Returns the medians at one size."""
    x, weight = torch.randn(kib * 256 // 1024 or 1, 1024), torch.ones(1024)
    kernel = client.proxy("torch", "subprocess", ADAPTER, "torch.rms_norm")
    passed_on = kernel(x, weight, 1e-6)
    torch.testing.assert_close(passed_on, rms_norm(x, weight, 1e-6))
    ways: dict[str, Callable[[], Any]] = {
        "in_process": lambda: rms_norm(x, weight, 1e-6),
        "worker": lambda: kernel(x, weight, 1e-6),
        "worker_passed_on": lambda: kernel(passed_on, weight, 1e-6),
        "in_process_again": lambda: rms_norm(x, weight, 1e-6),
        "copy": lambda: torch.empty_like(x).copy_(x),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, call in ways.items():
            measured = times(call, calls)
            if number:  # the first round warms up
                found[name] += measured
    medians = {name: round(statistics.median(values), 2) for name, values in found.items()}
    base = (medians["in_process"] + medians["in_process_again"]) / 2
    above = {f"{name}_above": round(medians[name] - base, 2) for name in ("worker", "worker_passed_on")}
    noise = round(abs(medians["in_process"] - medians["in_process_again"]), 2)
    return {"kib": kib, "us": medians, **above, "noise": noise}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=50)
    given = parser.parse_args()
    if error := client.prove("torch", "subprocess", (ADAPTER,), ""):
        raise SystemExit(error)
    rows = [row(kib, given.rounds, given.calls) for kib in KIB]
    bar = next(one for one in rows if one["kib"] == 1024)
    device = next(d for d in lz.doctor().devices.devices if d.platform == "cpu")
    report = {
        "device": device.model,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),  # processes that wanted a processor
        "layerzero": lz.__version__,
        "torch": torch.__version__,
        "rows": rows,
        "bar_us": BAR_US,
        "above_us": bar["worker_above"],
        "met": bar["worker_above"] <= BAR_US,
    }
    text = json.dumps(report, indent=2) + "\n"
    if given.output:
        given.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
