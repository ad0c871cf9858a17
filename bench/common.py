"""What scripts of this folder share: a record of a measurement, and the end of a run."""

import json
from pathlib import Path
from typing import Any


def record(**columns: Any) -> dict[str, Any]:
    """A complete record of a kernel of norm.rms on a CPU that nobody has, with other columns where they are given."""
    return {
        "kernel_id": "a.rms",
        "operation": "norm.rms",
        "device_id": "a CPU",
        "sm_version": 0,
        "dtype": "float32",
        "head_dim": 0,
        "seq_bucket": 0,
        "batch_bucket": 0,
        "axes": {"...": 1},
        "cache_state": "warm",
        "execution": "eager",
        "median_us": 1.0,
        "p95_us": 2.0,
        "samples": 9,
        "protocol": 1,
        "warmup_runs": 1,
        "timer": "wall",
        "interleaved": True,
        "kernel_version": "1",
        "layerzero_version": "1",
        "build_id": "1",
        "backend": "a",
        "measured_at": "2026-01-31T12:00:00Z",
    } | columns


def finish(result: dict[str, Any], path: Path | None) -> int:
    """Prints a result, writes it to a file if there is a path, and returns the exit code: 0 if it is "ok"."""
    text = json.dumps(result, indent=2)
    print(text)
    if path:
        path.write_text(text + "\n")
    return 0 if result["ok"] else 1
