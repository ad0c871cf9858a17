"""What the commands of `layerzero perfdb` share: sources of records, and calls with their rankings."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from layerzero import _layerzero, perf_records
from layerzero.errors import InvalidRequestError, known_name

Database = Annotated[
    Path | None,
    typer.Option("--database", help="the database's file; default: perfdb.path of the policy, or perfdb.sqlite"),
]
Operation = Annotated[str | None, typer.Option(help="only records of this operation, such as rms_norm")]
Device = Annotated[str | None, typer.Option(help="only records of devices whose name contains this text")]
RUN = (
    "protocol",
    "timer",
    "torch_version",
    "driver_version",
    "cuda_version",
    "device_uuid",
    "temperature",
    "memory_pressure",
    "power_state",
    "concurrent_work",
)
_CALL = ("operation", "device_id", "dtype", "axes", "options", "cache_state", "execution")


def existing(path: Path) -> Path:
    """Returns the path of a file; refuses one that is not there."""
    if not path.is_file():
        raise InvalidRequestError("FILE", "a file", f"{path}, which is {'a folder' if path.is_dir() else 'not there'}")
    return path


def is_database(path: Path) -> bool:
    """True if the file is a SQLite database, false if it is a file of records."""
    with path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"


def records_of(source: Path) -> list[dict[str, Any]]:
    """Returns the records of a database or of a file of records."""
    return perf_records.read_database(source) if is_database(existing(source)) else perf_records.read(source)


def chosen(records: Iterable[dict[str, Any]], operation: str | None, device: str | None) -> list[dict[str, Any]]:
    """Returns the records of an operation, by its flat name or id, and of devices with this text in their names."""
    from layerzero.cli._call import operation_names

    wanted = None
    if operation is not None and (wanted := _layerzero.find(operation)) is None:
        known_name("--operation", "a known operation", operation, operation_names(), "see `layerzero list`")
    rows = (r for r in records if wanted in (None, _layerzero.find(r["operation"])))
    return [r for r in rows if (device or "") in r["device_id"]]


def run_text(record: dict[str, Any]) -> str:
    """Returns "torch 2.13.0, driver 580.65, hot": what distinguishes the run of a record for a reader."""
    parts = [
        f"{name} {record[key]}"
        for name, key in (("torch", "torch_version"), ("driver", "driver_version"), ("CUDA", "cuda_version"))
        if record[key]
    ]
    parts += [record[key] for key in ("power_state", "temperature") if record[key]]
    return ", ".join(parts) or "-"


def rankings(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns every measured call of every run with its kernels, the fastest first."""
    calls: dict[str, dict[str, Any]] = {}
    for r in records:
        call, run = {key: r[key] for key in _CALL}, {key: r[key] for key in RUN}
        one = calls.setdefault(json.dumps([call, run], sort_keys=True), {**call, "run": run, "kernels": []})
        keys = ("kernel_id", "median_us", "low_us", "high_us", "samples", "backend_version", "measured_at", "valid")
        one["kernels"].append({key: r[key] for key in keys})
    for one in calls.values():
        one["kernels"].sort(key=lambda kernel: kernel["median_us"])
    return sorted(calls.values(), key=lambda one: json.dumps(one, sort_keys=True))


def best_of_calls(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns, by call, the fastest kernel of the run that was measured last."""
    latest: dict[str, tuple[str, dict[str, Any]]] = {}
    for one in rankings(r for r in records if r["valid"]):
        call = json.dumps({key: one[key] for key in _CALL}, sort_keys=True)
        when = max(kernel["measured_at"] for kernel in one["kernels"])
        if call not in latest or when > latest[call][0]:
            latest[call] = (when, one)
    return {call: one for call, (_, one) in latest.items()}


def call_text(call: dict[str, Any]) -> str:
    """Returns "norm.rms float32 ...=4 hidden=64 weight=given, cold, graph"."""
    sizes = [f"{name}={size}" for name, size in {**call["axes"], **call["options"]}.items()]
    where = [text for text in (call["cache_state"], call["execution"]) if text in ("cold", "graph")]
    return ", ".join([" ".join([call["operation"], call["dtype"], *sizes]), *where])
