"""lz.metrics() as metrics of prometheus_client: text, a file, a collector."""

import os
from collections.abc import Iterator
from typing import Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from layerzero.host.files import replaced
from layerzero.inspection.metrics import metrics
from layerzero.telemetry.health import breakers

_BOUNDS = [2**n for n in range(10, 35)]  # ns: 1 us to 17 s
_KERNEL = ("operation", "kernel")


class Collector:
    """Reads the process's counters at each scrape."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self._data = data

    def collect(self) -> Iterator[Metric]:
        yield from _families(self._data if self._data is not None else metrics().to_dict())


def registry(data: dict[str, Any] | None = None) -> prometheus_client.CollectorRegistry:
    """Returns a registry of LayerZero's metrics alone: those of `data`, or the process's at each scrape."""
    own = prometheus_client.CollectorRegistry(auto_describe=False)
    own.register(Collector(data))
    return own


def text(data: dict[str, Any] | None = None) -> str:
    return prometheus_client.generate_latest(registry(data)).decode()


def write(path: str | os.PathLike[str], data: dict[str, Any] | None = None) -> None:
    """Replaces the file in one step, so that no reader sees half of it."""
    with replaced(path) as file:
        file.write(text(data).encode())


def _families(data: dict[str, Any]) -> Iterator[Metric]:
    rows: list[tuple[str, str, tuple[str, ...], list[tuple[list[str], float]]]] = [
        (
            "layerzero_selections",
            "Kernels chosen where the call site had no choice cached.",
            _KERNEL,
            [([s["operation"], s["kernel_id"]], s["count"]) for s in data["selections"]],
        ),
        (
            "layerzero_reference_calls",
            "Calls that only a reference served.",
            ("operation", "platform", "kernel"),
            [([r["operation"], r["platform"], r["kernel_id"]], r["calls"]) for r in data["reference_calls"]],
        ),
        (
            "layerzero_kernel_failures",
            "Kernels that failed and were replaced by a fallback.",
            _KERNEL,
            [([f["operation"], f["kernel_id"]], f["count"]) for f in data["failures"]],
        ),
        ("layerzero_fallbacks", "Calls that a fallback answered.", (), [([], data["fallbacks"])]),
        (
            "layerzero_kernel_runs",
            "Runs of kernels while they are counted, by what the caches had.",
            (*_KERNEL, "cache"),
            [
                ([r["operation"], r["kernel_id"], cache], r[field])
                for r in data["runs"]
                for cache, field in (("hit", "hits"), ("miss", "misses"), ("fallback", "fallbacks"))
            ],
        ),
        (
            "layerzero_kernel_run_errors",
            "Runs of kernels that failed, while runs are counted.",
            _KERNEL,
            [([r["operation"], r["kernel_id"]], r["failures"]) for r in data["runs"]],
        ),
        *(
            (f"layerzero_cache_{name}", f"Choices {name}.", (), _one(data["cache"][name]))
            for name in ("inserted", "evicted", "invalidated")
        ),
    ]
    for name, what, labels, samples in rows:
        counter = CounterMetricFamily(name, what, labels=labels)
        for values, count in samples:
            counter.add_metric(values, count)
        yield counter
    yield GaugeMetricFamily("layerzero_cache_entries", "Choices in the cache.", value=data["cache"]["entries"])
    yield GaugeMetricFamily("layerzero_counting", "1 while runs are counted.", value=float(data["counting"]))
    tried = GaugeMetricFamily(
        "layerzero_library_tried",
        "1 if the installed library has been imported and tested, 0 if the first call that may use it will do so.",
        labels=("library",),
    )
    for library in data["libraries"]:
        tried.add_metric([library["name"]], float(library["tried"]))
    yield tried
    yield _latencies(data["runs"])
    open_breakers = GaugeMetricFamily(
        "layerzero_breaker",
        "1 for the state of the breaker of each kernel that failed.",
        labels=(*_KERNEL, "device", "state"),
    )
    for b in breakers():
        open_breakers.add_metric([b["operation"], b["kernel_id"], b["device"], b["state"]], 1)
    yield open_breakers
    yield from _compilation(data["jit"])


def _compilation(jit: dict[str, Any]) -> Iterator[Metric]:
    yield GaugeMetricFamily("layerzero_jit_queue", "Kinds of calls that wait for a compilation.", value=jit["waiting"])
    done = CounterMetricFamily("layerzero_jit_compilations", "Compilations, by their end.", labels=("state",))
    for state in ("ready", "failed", "dropped", "from_cache"):
        done.add_metric([state], jit[state])
    yield done
    yield CounterMetricFamily("layerzero_jit_seconds", "Time spent on compilations.", value=jit["seconds"])
    share = jit["warmup"]["ready"] / jit["warmup"]["calls"] if jit["warmup"]["calls"] else 0.0
    yield GaugeMetricFamily("layerzero_warmup_completeness", "Calls of warm-ups that are ready, of all.", value=share)


def _one(count: float) -> list[tuple[list[str], float]]:
    """Returns the sample of a metric without labels."""
    return [([], count)]


def _latencies(runs: list[dict[str, Any]]) -> Metric:
    family = HistogramMetricFamily(
        "layerzero_kernel_run_seconds",
        "Host time of runs that succeeded; on a GPU that of the launch.",
        labels=_KERNEL,
    )
    for run in runs:
        counts = {int(bound): count for bound, count in run["buckets"].items()}
        below = [(f"{b * 1e-9:.9g}", sum(n for bound, n in counts.items() if bound <= b)) for b in _BOUNDS]
        family.add_metric(
            [run["operation"], run["kernel_id"]], [*below, ("+Inf", sum(counts.values()))], run["seconds"]
        )
    return family
