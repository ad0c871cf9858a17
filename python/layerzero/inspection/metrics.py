"""Counters of this process, as data and as Prometheus text."""

import json
from collections.abc import Iterator
from typing import Any

from layerzero import _layerzero
from layerzero.host import log
from layerzero.inspection.report import Record


class Metrics(Record):
    """Counts since the process began: selections, reference_calls, failures, fallbacks, cache.

    selections: {"operation", "kernel_id", "count"}, how often a kernel was chosen for a call without a hit in its call
    site cache; hits are not counted, so that they cost nothing. reference_calls: {"operation", "platform", "kernel_id",
    "calls"}, calls that only a reference served. failures: {"operation", "kernel_id", "count"}, kernels that failed and
    were replaced by a fallback.
    """

    __slots__ = ()

    def prometheus(self) -> str:
        """Returns the counters in Prometheus's text format."""
        lines = []
        for name, kind, what, samples in _families(self._data):
            lines += [f"# HELP layerzero_{name} {what}", f"# TYPE layerzero_{name} {kind}"]
            lines += [f"layerzero_{name}{_labels(labels)} {value}" for labels, value in samples]
        return "\n".join(lines) + "\n"


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
        }
    )


Sample = tuple[dict[str, str], int]


def _families(data: dict[str, Any]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """Yields (name, type, help, samples) of each metric."""

    def by_kernel(rows: list[dict[str, Any]], count: str) -> list[Sample]:
        return [({k: v for k, v in row.items() if k != count}, row[count]) for row in rows]

    yield (
        "selections_total",
        "counter",
        "Kernels chosen where no choice was cached.",
        by_kernel(data["selections"], "count"),
    )
    yield (
        "reference_calls_total",
        "counter",
        "Calls that only a reference took.",
        by_kernel(data["reference_calls"], "calls"),
    )
    yield "kernel_failures_total", "counter", "Kernels that failed.", by_kernel(data["failures"], "count")
    yield "fallbacks_total", "counter", "Calls that a fallback answered.", [({}, data["fallbacks"])]
    cache = data["cache"]
    yield "cache_entries", "gauge", "Choices in the cache.", [({}, cache["entries"])]
    for name in ("inserted", "evicted", "invalidated"):
        yield f"cache_{name}_total", "counter", f"Choices {name}.", [({}, cache[name])]


def _labels(labels: dict[str, str]) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    inner = ",".join(f'{key.removesuffix("_id")}="{quoted(value)}"' for key, value in labels.items())
    return f"{{{inner}}}" if inner else ""
