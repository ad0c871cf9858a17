"""Overhead of sharing work among threads: a parallel loop with a barrier, for each source of threads."""

import statistics
import subprocess
import sys
from typing import Any

from layerzero import _layerzero
from layerzero.torch import attach

LOOPS = 2000  # loops per sample
BARS_US = {"torch": 2.0, "after_torch": 2.0, "own": 0.5, "team": 0.5}
_OWN = (  # a process that has not imported torch
    "import sys; from layerzero import _layerzero; _layerzero.fork_join({loops});"
    "print(*(_layerzero.fork_join({loops})[1] for _ in range({rounds})))"
)


def _row(way: str, seconds: list[float]) -> dict[str, Any]:
    us = sorted(1e6 * s for s in seconds)
    return {"way": way, "us": statistics.median(us), "least_us": us[0], "most_us": us[-1], "bar_us": BARS_US[way]}


def fork_join(rounds: int = 21) -> dict[str, Any]:
    """Returns {"threads", "loops", "rounds", "ways": [{"way", "us", "least_us", "most_us", "bar_us"}]}, medians of `rounds`.

    torch: torch's threads, loop after loop. after_torch: a loop right after a torch operation, which leaves its threads
    spinning. team: loops within one run of a program. own: the pool of processes without torch.
    """
    import torch

    ways: dict[str, list[float]] = {"torch": [], "after_torch": [], "team": []}
    rows = torch.ones(1 << 18)
    attach.attach_if_imported()
    threads, _ = _layerzero.fork_join(LOOPS)
    for _ in range(rounds):
        ways["torch"].append(_layerzero.fork_join(LOOPS)[1])
        ways["team"].append(_layerzero.fork_join(LOOPS, True)[1])
        after = []
        for _ in range(50):
            torch.neg(rows, out=rows)
            after.append(_layerzero.fork_join(1)[1])
        ways["after_torch"].append(statistics.median(after))
    own = subprocess.run(
        [sys.executable, "-c", _OWN.format(loops=LOOPS, rounds=rounds)], capture_output=True, text=True, check=True
    )
    ways["own"] = [float(seconds) for seconds in own.stdout.split()]
    return {
        "threads": threads,
        "loops": LOOPS,
        "rounds": rounds,
        "torch": torch.__version__,
        "ways": [_row(way, seconds) for way, seconds in ways.items()],
    }
