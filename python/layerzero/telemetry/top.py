"""What `layerzero top` shows of another process: rates between two states that its metrics server gave."""

import json
import urllib.error
import urllib.request
from typing import Any

from layerzero.errors import InvalidRequestError
from layerzero.inspection.metrics import quantile
from layerzero.inspection.text import table


def fetch(url: str) -> dict[str, Any]:
    """Returns the state of the process whose metrics server is at `url`."""
    try:
        with urllib.request.urlopen(f"{url}/state.json", timeout=10) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            "process",
            f"a process that serves its metrics at {url}",
            str(getattr(error, "reason", error)),
            f"call lz.serve_metrics() in it, or start it with LAYERZERO_METRICS={url.rpartition('/')[2]}",
        ) from None


def view(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Returns the kernels that ran since the state `before` (since counting began if none ran), the busiest first."""
    earlier = {(r["operation"], r["kernel_id"]): r for r in before["runs"]}
    seconds = max(now["time"] - before["time"], 1e-9)
    kernels = []
    for run in now["runs"]:
        old = earlier.get((run["operation"], run["kernel_id"]), {"runs": 0, "seconds": 0.0, "buckets": {}})
        buckets = {b: n - old["buckets"].get(b, 0) for b, n in run["buckets"].items()}
        recent = buckets if any(buckets.values()) else run["buckets"]
        row = {key: run[key] for key in ("operation", "kernel_id", "runs", "hits", "misses", "fallbacks", "failures")}
        row["per_second"] = (run["runs"] - old["runs"]) / seconds
        row["busy"] = (run["seconds"] - old["seconds"]) / seconds
        row["p50_us"], row["p99_us"] = (_us(quantile(recent, fraction)) for fraction in (0.5, 0.99))
        kernels.append(row)
    kernels.sort(key=lambda row: (-row["busy"], -row["runs"]))
    head = {key: now[key] for key in ("pid", "version", "time", "counting", "fallbacks", "cache", "breakers")}
    head["reference_calls"] = sum(r["calls"] for r in now["reference_calls"])
    return head | {"interval_s": seconds, "kernels": kernels}


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def text(shown: dict[str, Any], width: int | None = None, height: int | None = None) -> str:
    """Returns a view as text that fits into a terminal."""
    open_breakers = [b for b in shown["breakers"] if b["state"] != "closed"]
    head = (
        f"layerzero {shown['version']}, process {shown['pid']}: {sum(k['per_second'] for k in shown['kernels']):.0f} runs/s, "
        f"{shown['fallbacks']} fallbacks, {shown['reference_calls']} calls of references, "
        f"{shown['cache']['entries']} choices in the cache, {len(open_breakers)} breakers open"
    )
    columns = (
        "operation",
        "kernel",
        "runs/s",
        "busy",
        "p50 us",
        "p99 us",
        "runs",
        "hits",
        "misses",
        "fallbacks",
        "failed",
    )
    rows = [
        [
            k["operation"],
            k["kernel_id"],
            f"{k['per_second']:.0f}",
            f"{k['busy']:.0%}",
            "" if k["p50_us"] is None else f"{k['p50_us']:.3g}",
            "" if k["p99_us"] is None else f"{k['p99_us']:.3g}",
            *(k[key] for key in ("runs", "hits", "misses", "fallbacks", "failures")),
        ]
        for k in shown["kernels"][: None if height is None else max(1, height - 5)]
    ]
    lines = [head, "", table(columns, rows, width=width)]
    lines += [f"{b['kernel_id']} of {b['operation']} on {b['device']}: {b['state']}" for b in open_breakers]
    return "\n".join(lines)
