"""layerzero bench ops."""

from pathlib import Path
from typing import Annotated

import typer

from layerzero.cli._call import operation_names
from layerzero.cli._output import Json, finish, print_table, progress
from layerzero.errors import InvalidRequestError, known_name
from layerzero.host.optional import need


def command(
    operations: Annotated[str | None, typer.Option(help="flat names, comma-separated; default: all")] = None,
    rounds: Annotated[int, typer.Option(help="interleaved rounds of each timing", min=4)] = 14,
    cases: Annotated[Path | None, typer.Option(help="a folder of .cases files instead of bench/ops")] = None,
    write_prior: Annotated[bool, typer.Option(help="let the times decide on this machine from now on")] = False,
    json: Json = False,
) -> None:
    """Measures every kernel of each call and the regret of the choice; --write-prior writes a measured prior."""
    for name in operations.split(",") if operations else ():
        known_name("--operations", "a known operation", name.strip(), operation_names(), "see `layerzero list`")
    need("torch", what="bench ops")
    from layerzero.bench.operations import all_cases, run
    from layerzero.bench.operations import write_prior as write
    from layerzero.models.disk_cache import cache_dir

    chosen = None if operations is None else [name.strip() for name in operations.split(",")]
    found = all_cases(chosen, cases)
    missing = set(chosen or ()) - {case.operation for case in found}
    if missing or not found:
        names = sorted({case.operation for case in all_cases(None, cases)})
        raise InvalidRequestError("--operations", f"some of {', '.join(names)}", repr(", ".join(sorted(missing))))
    with progress("calls", total=len(found)) as step:
        report = run(found, rounds, on_step=step)
    if write_prior and "interrupted" not in report:
        path = cache_dir() / "prior.records.json"
        report["prior"] = {"path": str(path), "records": write(found, path)}
    finish(report, json, _print)


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
