"""layerzero perfdb diff."""

import json as _json
from pathlib import Path
from typing import Annotated, Any

import typer

from layerzero.cli._output import Json, finish, print_table
from layerzero.cli._perfdb import Device, Operation, best_of_calls, call_text, chosen, records_of


def command(
    before: Annotated[Path, typer.Argument(help="a database or a file of records")],
    after: Annotated[
        Path | None, typer.Argument(help="the database or file to compare with; default: this machine's database")
    ] = None,
    operation: Operation = None,
    device: Device = None,
    threshold: Annotated[
        float, typer.Option(help="list a call if its best time changed by at least this share", min=0)
    ] = 0.05,
    json: Json = False,
) -> None:
    """Compares two sets of measurements, call by call.

    It lists calls with another fastest kernel, and times that changed. Exit code 1 if there are any.
    """
    from layerzero import perf_records

    first = best_of_calls(chosen(records_of(before), operation, device))
    rows = perf_records.read_database() if after is None else records_of(after)
    second = best_of_calls(chosen(rows, operation, device))
    both = [
        (_json.loads(call), first[call]["kernels"], second[call]["kernels"])
        for call in sorted(first.keys() & second.keys())
    ]
    changed = [row for call, a, b in both if (row := _change(call, a, b, threshold)) is not None]
    report = {
        "before": str(before),
        "after": str(after or perf_records.database_state()["path"]),
        "calls": len(both),
        "only_before": len(first.keys() - second.keys()),
        "only_after": len(second.keys() - first.keys()),
        "changed": changed,
        "ok": not changed,
    }
    finish(report, json, _print)


def _change(
    call: dict[str, Any], a: list[dict[str, Any]], b: list[dict[str, Any]], threshold: float
) -> dict[str, Any] | None:
    ratio = b[0]["median_us"] / a[0]["median_us"]
    if a[0]["kernel_id"] == b[0]["kernel_id"] and abs(ratio - 1) <= threshold:
        return None
    best = {"best_before": a[0]["kernel_id"], "best_after": b[0]["kernel_id"]}
    return {**call, **best, "us_before": a[0]["median_us"], "us_after": b[0]["median_us"], "ratio": ratio}


def _print(report: dict[str, Any]) -> None:
    rows = [
        [
            call_text(c),
            c["best_before"],
            c["best_after"],
            f"{c['us_before']:.2f}",
            f"{c['us_after']:.2f}",
            f"{c['ratio']:.2f}",
        ]
        for c in report["changed"]
    ]
    columns = ["call", "best before", "best after", "us", "us", "ratio"]
    print_table(
        f"{report['before']} and {report['after']}: {len(rows)} of {report['calls']} calls changed",
        columns,
        rows,
        wraps=("call",),
    )
    print(f"calls in one only: {report['only_before']} before, {report['only_after']} after")
