"""`lz.metrics`: counters of this process, as data and as Prometheus text."""

import json
import os
import sys
from typing import Any

from layerzero import _layerzero
from layerzero.host import log
from layerzero.host.optional import need
from layerzero.host.typed import typed
from layerzero.inspection.report import Record


class Metrics(Record):
    """Counts since the process began: selections, reference_calls, failures, fallbacks, cache, counting, runs.

    selections: {"operation", "kernel_id", "count"}, how often a kernel was chosen for a call without a hit in its call
    site cache. reference_calls: {"operation", "platform", "kernel_id", "calls"}, calls that only a reference served.
    failures: {"operation", "kernel_id", "count"}, kernels that failed and were replaced by a fallback. counting: whether
    runs are counted now (`metrics.enabled`, lz.serve_metrics). runs: of each kernel that ran while they were, {"operation",
    "kernel_id", "runs", "hits", "misses", "failures", "fallbacks", "seconds", "buckets"}: hits had a cached plan,
    misses were selected for the call, fallbacks ran after another kernel of the call had failed; seconds is the host time of runs
    that succeeded, buckets how many of them took less than a number of nanoseconds and at least half of it. libraries:
    {"name", "tried"} of each installed kernel library: one that is not tried yet is imported and tested by the first
    call that may use it. jit: kernels that are {waiting, compiling} now, and how many became {ready, failed, dropped} in how
    many {seconds}, {from_cache} of the ready ones without a compilation; {warmup}: how many calls of lz.warmup are ready.
    """

    __slots__ = ()

    def prometheus(self) -> str:
        """Returns the counters in Prometheus's text format. Needs prometheus_client."""
        need("prometheus_client", what="metrics().prometheus()")
        from layerzero.telemetry.prometheus import text

        return text(self._data)

    @typed
    def write(self, path: str | os.PathLike[str]) -> None:
        """Replaces a file by prometheus(), for the textfile collector of a node exporter."""
        need("prometheus_client", what="metrics().write()")
        from layerzero.telemetry.prometheus import write

        write(path, self._data)


def metrics() -> Metrics:
    """Returns the counters by operation and kernel; `.prometheus()` returns them as text for Prometheus."""
    stats = json.loads(_layerzero.stats())
    keys = ("operation", "platform", "kernel_id", "calls")
    return Metrics(
        {
            "selections": [{"operation": o, "kernel_id": k, "count": n} for o, k, n in _layerzero.selections()],
            "reference_calls": [{key: use[key] for key in keys} for use in stats["served_by_reference"]],
            "failures": [{"operation": o, "kernel_id": k, "count": n} for (o, k), n in sorted(log.failures.items())],
            "fallbacks": stats["fallbacks"],
            "cache": stats["cache"],
            "counting": stats["counting"],
            "runs": [_with_hits(run) for run in stats["runs"]],
            "libraries": _libraries(),
            "jit": _compilation(),
        }
    )


def _with_hits(run: dict[str, Any]) -> dict[str, Any]:
    return run | {"hits": max(0, run["runs"] - run["misses"] - run["fallbacks"])}


def _compilation() -> dict[str, Any]:
    """Returns the counts of the compiler's queue, without importing it: all 0 in a process that has compiled nothing."""
    work, state = sys.modules.get("layerzero.jit.work"), sys.modules.get("layerzero.jit.state")
    names = ("waiting", "compiling", "ready", "failed", "dropped", "from_cache", "seconds")
    counts = work.counts()._asdict() if work is not None else dict.fromkeys(names, 0)
    return counts | {"warmup": state.warmups() if state is not None else {"runs": 0, "calls": 0, "ready": 0}}


def _libraries() -> list[dict[str, Any]]:
    """Returns each installed library and whether its probe has run."""
    tried: dict[str, bool] = {}
    for kernel in json.loads(_layerzero.kernels(None, False)):
        if kernel["backend"] and kernel["installed"]:
            tried[kernel["backend"]] = tried.get(kernel["backend"], False) or kernel["usable"] is not None
    return [{"name": name, "tried": done} for name, done in sorted(tried.items())]


def quantile(buckets: dict[str, int], fraction: float) -> float | None:
    """Returns the seconds below which this fraction of the runs stayed, at most twice too long; None without runs."""
    total, seen = sum(buckets.values()), 0
    for bound, count in sorted((int(bound), count) for bound, count in buckets.items()):
        if seen + count >= fraction * total and count:
            inside = max(0.0, fraction * total - seen) / count
            return bound / 2 * 2**inside * 1e-9  # runs of a bucket are taken as even on its logarithmic scale
        seen += count
    return None
