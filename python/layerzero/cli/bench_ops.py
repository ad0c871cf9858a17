"""layerzero bench ops."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from layerzero.cli._bench import TIMES, Calls, Cold, Output, Rows, Sizes, cases_of, times_of
from layerzero.cli._call import operation_names
from layerzero.cli._output import Json, Quiet, finish, note, print_table, progress
from layerzero.errors import InvalidRequestError, known_name
from layerzero.host.optional import need


def command(
    operations: Annotated[str | None, typer.Option(help="flat names, comma-separated; default: all")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    rounds: Annotated[
        int | None, typer.Option(help="interleaved rounds of each timing: 14 on the CPU, 12 on a GPU", min=4)
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="time limit: no call begins after it", min=1)] = None,
    cases: Annotated[Path | None, typer.Option(help="a folder of .cases files instead of bench/ops")] = None,
    call: Calls = None,
    size: Sizes = None,
    cold: Cold = False,
    output: Output = None,
    write_prior: Annotated[
        bool, typer.Option(help="choose kernels on this machine by these times from now on")
    ] = False,
    records: Annotated[Path | None, typer.Option(help="write the records to this file too")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Measures every kernel of each call.

    The report has the regret: how much longer the chosen kernel takes than the fastest one. --write-prior keeps the
    times in the performance database. On a GPU calls are timed one by one and in CUDA graphs, after a comparison with
    the reference in FP64. Each call is shown on standard error when it is done, and written to --output at once.
    """
    if call and (operations or cases):
        raise InvalidRequestError("--call", "calls, or shipped cases by --operations and --cases", "both")
    for name in operations.split(",") if operations else ():
        known_name("--operations", "a known operation", name.strip(), operation_names(), "see `layerzero list`")
    need("torch", what="bench ops")
    on_gpu = device != "cpu"
    if on_gpu:
        device = cuda_device(device)
    from layerzero.bench.operations import all_cases, cases_folder, keep
    from layerzero.bench.operations import write_prior as write

    folder = cases or (cases_folder() / "cuda" if on_gpu else None)
    chosen = None if operations is None else [name.strip() for name in operations.split(",")]
    found = cases_of(call, size, cold) or all_cases(chosen, folder)
    missing = set(chosen or ()) - {case.operation for case in found}
    if missing or not found:
        names = sorted({case.operation for case in all_cases(None, folder)})
        raise InvalidRequestError("--operations", f"some of {', '.join(names)}", repr(", ".join(sorted(missing))))
    with Rows(output, TIMES) as written, progress("calls", total=len(found)) as step:
        shown = _shows(written, step, note(quiet))
        report, rows = _measured(found, device, rounds, seconds, shown)
        written.report(report)
    if records is not None:
        write(rows, records)
    if write_prior and "interrupted" not in report:
        report["prior"] = {"path": str(keep(rows)), "records": len(rows)}
    finish(report, json, _print_rankings if on_gpu else _print)


def _shows(written: Rows, step: Callable[..., None], show: Callable[[str], None]) -> Callable[..., None]:
    """Returns on_step: a line for each call that is done, and its rows into the files."""

    def on_step(operation: str, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            times = list(times_of(row))
            for one in times:
                written.add(one)
            best, *others = times
            slower = "".join(f", {one['kernel']} {one['over_best']:.2f}x" for one in others)
            mode = f"{best['execution']}, {best['cache']}"
            show(f"{operation} {row['call']} ({mode}): {best['kernel']} {best['us']:.1f} us{slower}")
        step(operation)

    return on_step


def cuda_device(name: str) -> str:
    """Returns cuda:N; refuses another name, and a device that torch does not have."""
    import torch

    number = name.removeprefix("cuda").removeprefix(":") or "0"
    if not name.startswith("cuda") or not number.isdecimal():
        raise InvalidRequestError("--device", "cpu, cuda or cuda:N", repr(name))
    if not torch.cuda.is_available() or int(number) >= torch.cuda.device_count():
        got = f"{torch.cuda.device_count()} devices" if torch.cuda.is_available() else "no CUDA device"
        raise InvalidRequestError("--device", f"the CUDA device {number}", got, "see `layerzero doctor`")
    return f"cuda:{number}"


def _measured(
    found: list[Any], device: str, rounds: int | None, seconds: float | None, step: Callable[..., None]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the report and the records."""
    if device != "cpu":
        from layerzero.bench import gpu, ranking

        if rounds is not None and rounds < 6:
            raise InvalidRequestError("--rounds", "at least 6 on a GPU: they are dealt to three parts", str(rounds))
        report, rankings = gpu.run(found, rounds or 12, seconds, step, device)
        return report, ranking.records(rankings, **gpu.device_columns(device))
    from layerzero.bench import operations

    report = operations.run(found, rounds or 14, seconds, step)
    return report, operations.records(found)


def _print_rankings(report: dict) -> None:
    """Every call with its kernels, fastest first, then what follows from them."""
    rows = []
    for call in report["calls"]:
        best, *others = call["kernels"]
        mark = "" if call["chosen"] in (best["kernel_id"], "") else f", chosen: {call['chosen']}"
        slower = ", ".join(f"{k['kernel_id']} {k['us'] / best['us']:.2f}x" for k in others) + mark
        interval = f"{best['us']:.1f} ({best['low_us']:.1f} to {best['high_us']:.1f})"
        where = call["execution"] + (", cold" if call["cold"] else "")
        rows.append(
            [call["name"], call["call"], where, best["kernel_id"], interval, slower, f"{call['aa_spread']:.3f}"]
        )
    columns = ["operation", "call", "as", "best", "us (95 %)", "the others", "A/A spread"]
    print_table(f"Kernels of each call on {report['device_id']}", columns, rows)
    for call in report["calls"]:
        for kernel, problem in call["wrong"].items() if call["execution"] == "eager" else ():
            print(f"WRONG, not timed: {kernel}: {problem}: {call['name']} {call['call']}")
    for call, problem in report["failed"].items():
        print(f"not measured: {call}: {problem}")
    for mode, by_choice in report["regret"].items():
        for how, regret in by_choice.items():
            if not regret:  # no choice was timed
                continue
            print(
                f"regret, {mode}, {how.replace('_', ' ')}: mean {regret['mean']:.3f}, p99 {regret['p99']:.2f}", end=""
            )
            print(f", worst {regret['max']:.2f} over {regret['calls']} calls ({regret['worst']})")
    kept = [call for call in report["calls"] if len(call["kernels"]) > 1 and not call["has_entry"]]
    print(f"{len(kept)} calls keep to their default, because what their records choose was not as fast on other rounds")
    routed = {name: us for name, us in report["passthrough_us"].items() if us is not None}
    print("routing alone, us: " + ", ".join(f"{name} {us:.1f}" for name, us in sorted(routed.items())))
    if "prior" in report:
        print(f"{report['prior']['records']} records in {report['prior']['path']}: they decide from now on")


def _print(report: dict) -> None:
    rows = []
    for call in report["calls"]:
        best = call["us"][call["best"]]
        rivals = {k: t for k, t in call["us"].items() if k != call["best"]}
        rivals |= {"the reference": call["reference_us"]} if call["reference_us"] else {}
        others = ", ".join(f"{k} {t / best:.2f}x" for k, t in rivals.items())
        share = "" if call["share_of_roof"] is None else f"{call['share_of_roof']:.0%}"
        rows.append(
            [call["name"], call["call"], call["best"], f"{best:.1f}", others, share, f"{call['aa_spread']:.2f}"]
        )
    columns = ["operation", "call", "best", "us", "the others", "of the roof", "A/A spread"]
    print_table("Kernels of each call", columns, rows)
    roofs = report["roofs"]
    print(f"roofs: {roofs['stream_gb_s']:.1f} GB/s read, {roofs['f32_gflop_s']:.0f} GFLOP/s in float32")
    for how, regret in report["regret"].items():
        print(f"regret, {how.replace('_', ' ')}: mean {regret['mean']:.3f}, worst {regret['max']:.2f}", end="")
        print(f" over {regret['calls']} calls with rivals")
    if "prior" in report:
        print(f"{report['prior']['records']} records in {report['prior']['path']}: they decide from now on")
