"""What an observer costs a call: without one, with counters, with a Python callback, with spans.

    python bench/observe.py --output bench/results/observe-<machine>.json

Each round times all of them in turn, so that a busy machine disturbs all alike; the least of the rounds counts. Off is timed twice:
the difference of the two is the noise. The bar: counters cost at most 150 ns a call.
"""

import argparse
import json
import time
from pathlib import Path

import layerzero as lz
import torch

CALLS, BAR_NS = 20_000, 150
X, W = torch.ones(1, 16), torch.ones(16)


def once() -> float:
    """Returns the nanoseconds of a call, cached and prepared by a call before."""
    call = lz.rms_norm
    call(X, W)
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call(X, W)
    return (time.perf_counter_ns() - start) / CALLS


def counted() -> float:
    lz.configure(metrics={"enabled": True})
    try:
        return once()
    finally:
        lz.configure(metrics={"enabled": False})


def called() -> float:
    with lz.observe(lambda run: None):
        return once()


def traced() -> float:
    with lz.trace():
        return once()


def recorded() -> float:
    lz.configure(log_json=True)
    try:
        return once()
    finally:
        lz.configure(log_json=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    ways = {"off": once, "off_again": once, "counters": counted, "json_records": recorded, "callback": called}
    try:
        lz.trace  # noqa: B018
        ways["spans_without_sdk"] = traced
    except lz.NotInstalledError:
        print("no spans: opentelemetry-api is not installed")
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(options.rounds):
        for name, way in ways.items():
            least[name] = min(least[name], way())
    off = min(least["off"], least["off_again"])
    report = {
        "cpu": next((d["model"] for d in lz.doctor().devices.to_dict()["devices"]), None),
        "build": lz.version_info.build,
        "call": "rms_norm float32[1,16]",
        "rounds": options.rounds,
        "calls": CALLS,
        "ns_per_call": {name: round(ns, 1) for name, ns in least.items()},
        "added_ns": {name: round(ns - off, 1) for name, ns in least.items() if not name.startswith("off")},
        "noise_ns": round(abs(least["off"] - least["off_again"]), 1),
        "bar_ns": BAR_NS,
        "ok": least["counters"] - off <= BAR_NS,
    }
    print(json.dumps(report, indent=2))
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
