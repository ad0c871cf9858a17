"""layerzero bench regret."""

from pathlib import Path
from typing import Annotated, Any

import typer

from layerzero.cli._bench import REGRETS, Calls, Cold, Output, Rows, Sizes, cases_of, regret_of
from layerzero.cli._call import operation_names
from layerzero.cli._output import Json, Quiet, finish, note, progress
from layerzero.cli.bench_ops import cuda_device
from layerzero.errors import InvalidRequestError, known_name
from layerzero.host.optional import need


def command(
    operations: Annotated[str | None, typer.Option(help="flat names, comma-separated; default: all")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    rounds: Annotated[int, typer.Option(help="rounds of each comparison", min=6)] = 20,
    seconds: Annotated[float | None, typer.Option(help="time limit: no call begins after it", min=1)] = None,
    every: Annotated[int, typer.Option(help="only every N-th case", min=1)] = 1,
    cases: Annotated[Path | None, typer.Option(help="a folder of .cases files instead of bench/ops")] = None,
    call: Calls = None,
    size: Sizes = None,
    cold: Cold = False,
    output: Output = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Measures what tuning gains on each case.

    Each case is tuned, and its kernels are then timed again: the report has the time of the kernel that priorities
    choose, and of the one that tuned records choose, over the time of the fastest one. The database is neither read nor
    written. Each call is shown on standard error when it is done, and written to --output at once.
    """
    if call and (operations or cases):
        raise InvalidRequestError("--call", "calls, or shipped cases by --operations and --cases", "both")
    for name in operations.split(",") if operations else ():
        known_name("--operations", "a known operation", name.strip(), operation_names(), "see `layerzero list`")
    need("torch", what="bench regret")
    if device != "cpu":
        device = cuda_device(device)
    from layerzero.bench import regret
    from layerzero.bench.operations import all_cases, cases_folder

    folder = cases or (cases_folder() / "cuda" if device != "cpu" else None)
    names = None if operations is None else [name.strip() for name in operations.split(",")]
    found = cases_of(call, size, cold) or all_cases(names, folder)[::every]
    if not found:
        raise InvalidRequestError("--operations", "operations with cases", repr(operations))
    show = note(quiet)
    with Rows(output, REGRETS) as written, progress("calls", total=len(found)) as step:

        def on_step(operation: str, cells: list[dict[str, Any]]) -> None:
            for cell in cells:
                row = regret_of(cell)
                written.add(row)
                mode = f"{row['execution']}, {row['cache']}"
                show(
                    f"{operation} {row['call']} ({mode}): {row['by_records']} of {row['kernels']}, {row['regret']:.3f}"
                )
            step(operation)

        report = regret.run(found, rounds, seconds, device, on_step)
        written.report(report)
    finish(report, json, _print)


def _print(report: dict[str, Any]) -> None:
    for how, found in report["regret"].items():
        print(f"regret, {how}: mean {found['mean']:.4f}, median {found['median']:.4f}, p99 {found['p99']:.3f}", end="")
        print(f", worst {found['max']:.3f} over {found['cases']} cases: {found['worst']}")
        raw = found["raw"]
        print(
            f"  {found['within_noise']} within noise count as 1; as timed: mean {raw['mean']:.4f}, p99 {raw['p99']:.3f}"
        )
    for call, why in report["failed"].items():
        print(f"not judged: {call}: {why}")
