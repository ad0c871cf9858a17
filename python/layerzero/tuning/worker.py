"""The process that measures: candidates run here, so that one that crashes or hangs costs a record and not the program.

It reads its settings as one line of JSON from standard input, then a line for each call, and writes a line for each event to
its first standard output; what libraries print goes to standard error.
"""

import importlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any, TextIO

MEMORY_TEXT = "out of memory"


class Reports:
    """Lines of JSON to the parent."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def send(self, event: str, **about: Any) -> None:
        """Sends one event."""
        self._out.write(json.dumps({"event": event, **about}) + "\n")
        self._out.flush()


def _limit(memory_mb: int, device: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not memory_mb:
        return
    if device == "cpu":
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()  # data and stack
        resource.setrlimit(resource.RLIMIT_DATA, (used + memory_mb * 2**20,) * 2)
        return
    import torch

    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, memory_mb * 2**20 / total), device)


def _one(call: dict[str, Any], settings: Any, reports: Reports) -> None:
    from layerzero.errors import LayerZeroError
    from layerzero.tuning import measure, sides

    def about_to(kernel: str) -> None:
        reports.send("kernel", kernel=kernel)

    try:
        results = measure.tune_call(call["name"], call["line"], settings, about_to)
    except (LayerZeroError, RuntimeError, ValueError, TypeError, MemoryError, NotImplementedError) as error:
        state = MEMORY_TEXT if measure.is_out_of_memory(error) else sides.short(error)
        reports.send("failed", why=state, lost="CUDA error" in str(error))
        return
    for result in results:
        for row in result["kernels"]:
            row.pop("samples")
    reports.send("result", results=results)


def main(parent: int, path: list[str]) -> None:
    """Measures until standard input ends."""
    from layerzero.isolation.worker import end_with

    end_with(parent)
    reports = Reports(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    given = json.loads(sys.stdin.readline())
    import torch

    import layerzero as lz
    from layerzero.tuning import measure

    if given["device"] != "cpu":
        torch.cuda.set_device(given["device"])
    if given["threads"]:
        torch.set_num_threads(given["threads"])
    for module in given["imports"]:
        importlib.import_module(module)
    lz.configure(**given["policy"], perfdb={"enabled": False})  # what was measured before decides nothing
    _limit(given["memory_mb"], given["device"])
    names = ("device", "rounds", "columns", "denied", "seed", "until")
    settings = measure.Settings(**{name: given[name] for name in names})
    settings.caches, settings.executions = tuple(given["caches"]), tuple(given["executions"])
    reports.send("ready", pid=os.getpid())
    for line in sys.stdin:
        call = json.loads(line)
        if "denied" in call:
            settings.denied |= call["denied"]
            continue
        _one(call, settings, reports)
        if (
            given["device"] != "cpu"
            and torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory // 2
        ):
            torch.cuda.empty_cache()
