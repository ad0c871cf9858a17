"""layerzero perfdb show."""

from typing import Any

from layerzero.cli._output import Json, print_json, print_table, size_text
from layerzero.cli._perfdb import Database, Device, Operation, call_text, chosen, rankings, run_text


def command(operation: Operation = None, device: Device = None, database: Database = None, json: Json = False) -> None:
    """Shows what the performance database has.

    It lists the runs of each operation and device; with --operation every measured call with its kernels.
    """
    from layerzero import perf_records

    records = chosen(perf_records.read_database(database), operation, device)
    state = perf_records.database_state()
    report = {
        "path": str(database or state["path"]),
        "sqlite": state["sqlite"],
        "records": len(records),
        "runs": _runs(records),
        "calls": rankings(records) if operation else [],
    }
    if json:
        print_json(report)
        return
    rows = [[r["operation"], r["device_id"], r["run"], r["calls"], r["records"], r["latest"]] for r in report["runs"]]
    columns = ["operation", "device", "run", "calls", "records", "latest"]
    size = (database or _path(state)).stat().st_size if (database or _path(state)).exists() else 0
    print_table(f"{report['path']}: {len(records)} records, {size_text(size)}", columns, rows, wraps=("device", "run"))
    for call in report["calls"]:
        kernels = [
            [k["kernel_id"], f"{k['median_us']:.2f}", _interval(k), k["samples"], k["measured_at"]]
            for k in call["kernels"]
        ]
        print_table(call_text(call), ["kernel", "us", "95 %", "samples", "measured"], kernels)


def _path(state: dict[str, Any]) -> Any:
    from pathlib import Path

    return Path(state["path"])


def _interval(kernel: dict[str, Any]) -> str:
    return "" if kernel["low_us"] is None else f"{kernel['low_us']:.2f} to {kernel['high_us']:.2f}"


def _runs(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for r in records:
        found.setdefault((r["operation"], r["device_id"], run_text(r)), []).append(r)
    return [
        {
            "operation": operation,
            "device_id": device,
            "run": run,
            "calls": len(rankings(rows)),
            "records": len(rows),
            "latest": max(row["measured_at"] for row in rows),
        }
        for (operation, device, run), rows in sorted(found.items())
    ]
