"""Measured records of what was timed, and the columns that say where: device, environment, versions."""

import datetime
import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import torch

import layerzero as lz
from layerzero import _layerzero
from layerzero.tuning import core

PROTOCOL = 1


def interval(us: Iterable[float]) -> tuple[float, float]:
    """Returns a 95 % interval of the median, from the order of the samples."""
    ordered = sorted(us)
    skipped = max(0, int((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return ordered[skipped], ordered[-1 - skipped]


def record(about: dict[str, Any], kernel: Any, us: Sequence[float], **columns: Any) -> dict[str, Any]:
    """Returns one measured record (schemas/records.schema.json); `kernel`: its row of list_kernels()."""
    version, build = _layerzero.build_id()
    axes, (low, high) = about["axes"], interval(us)
    return {
        "kernel_id": kernel.kernel_id,
        "operation": about["operation"],
        "device_id": "",
        "sm_version": 0,
        "dtype": about["dtype"],
        "head_dim": axes.get("d_qk", 0),
        "seq_bucket": axes.get("s_kv", 0),
        "batch_bucket": axes.get("b", axes.get("...", 0)),
        "axes": axes,
        "options": about["options"],
        "cache_state": "warm",
        "execution": "eager",
        "median_us": statistics.median(us),
        "p95_us": sorted(us)[math.ceil(0.95 * (len(us) - 1))],
        "samples": len(us),
        "variance_us": statistics.variance(us) if len(us) > 1 else 0.0,
        "low_us": low,
        "high_us": high,
        "protocol": PROTOCOL,
        "warmup_runs": 1,
        "timer": "wall",
        "interleaved": True,
        "kernel_version": str(kernel.version),
        "layerzero_version": version,
        "build_id": build,
        "backend": kernel.kernel_id.partition(".")[0],
        "backend_version": kernel.library_version,
        "torch_version": torch.__version__,
        "measured_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    } | columns


def variance_for(noise: float, median_us: float, samples: int) -> float:
    """Returns the variance by which a time has this noise in selection: half the width of the median's 95 % interval,
    relative (src/perfdb/prior.cpp)."""
    return (noise * median_us / (1.96 * 1.2533)) ** 2 * samples


LEAST_NOISE = 0.005  # of a time that was taken in turns, in as many rounds as kConfirmed of src/perfdb/prior.cpp


@functools.lru_cache(maxsize=4096)
def kernel_row(operation: str, kernel_id: str) -> Any:
    """Returns the row of list_kernels()."""
    return next(k for k in lz.list_kernels(operation) if k.kernel_id == kernel_id)


def of_result(result: dict[str, Any], columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a record of each kernel of a tuned call (measure.result_of), such that selection chooses the winner.

    Selection keeps the default among kernels whose intervals overlap, so a record's variance is that of the comparison: small
    for kernels that the finals have separated, and as large as their difference for a kernel that was faster and not beyond
    noise.
    """
    rows = result["kernels"]
    if len(rows) < 2:
        return []
    by_id = {row["kernel_id"]: row for row in rows}
    default, winner = by_id[result["default"]], by_id[result["winner"]]
    made = []
    for row in rows:
        us = row["samples"]
        noise = max(LEAST_NOISE, _noise(row, default, winner, result["spread"]))
        of = {"cache_state": result["cache_state"], "execution": result["execution"]}
        of |= {"warmup_runs": core.WARM_UPS, "warmup_ms": row["first_us"] / 1e3}
        of |= {"variance_us": variance_for(noise, row["us"], len(us))}
        of |= {"timer": "wall" if columns.get("sm_version") in (None, 0) else "cuda_event"}
        if row["max_error"] is not None:
            of |= {"max_error": row["max_error"], "error_bound": row["error_bound"]}
        made.append(record(result, kernel_row(result["name"], row["kernel_id"]), us, **(of | columns)))
    return made


def _noise(row: dict[str, Any], default: dict[str, Any], winner: dict[str, Any], spread: float) -> float:
    """Returns the relative noise of a kernel's time, as selection adds those of two kernels up."""
    if row["us"] >= winner["us"]:
        return LEAST_NOISE if winner is not default else spread
    faster = winner["us"] / row["us"] - 1  # by the medians alone: the finals have not shown it
    return max(faster, spread) if winner is default else faster
