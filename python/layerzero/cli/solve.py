"""layerzero solve."""

from pathlib import Path
from typing import Annotated, Any

import typer

from layerzero.cli._bench import sizes_by_name
from layerzero.cli._call import Device, check_device
from layerzero.cli._output import Json, Quiet, note, print_json
from layerzero.errors import InvalidRequestError

HOW = "layerzero solve --operation 'rms_norm --input bf16[seq_len,4096] --weight bf16[4096]' --bucket seq_len=128,512"


def command(
    operation: Annotated[
        list[str] | None, typer.Option(help="a call with names of buckets as sizes; repeatable")
    ] = None,
    operations: Annotated[Path | None, typer.Option(help="a file of such calls, one per line")] = None,
    model: Annotated[Path | None, typer.Option(help="the folder of a model")] = None,
    workload: Annotated[Path | None, typer.Option(help="calls that `layerzero record` wrote, with their sizes")] = None,
    bucket: Annotated[
        list[str] | None, typer.Option(help="NAME=SIZE,SIZE...: sizes of a bucket name; default: the usual sizes")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="write the table: in binary form, or as JSON for *.json")] = None,
    lock: Annotated[Path | None, typer.Option(help="write a lock, such as layerzero.lock")] = None,
    check: Annotated[Path | None, typer.Option(help="make the table of this lock again and compare")] = None,
    device: Annotated[str | None, Device] = None,
    numerics: Annotated[
        str | None, typer.Option(help="only kernels of this numerics class; default: kernels without a class")
    ] = None,
    tp_invariant: Annotated[
        bool, typer.Option(help="only kernels whose results do not depend on the tensor-parallel size")
    ] = False,
    capturing: Annotated[bool, typer.Option(help="choose kernels for calls inside CUDA graph captures")] = False,
    plan_mode: Annotated[bool, typer.Option(help="join neighboring operations where that is faster")] = False,
    compile_jit: Annotated[bool, typer.Option(help="first compile the kernels that the calls would use")] = False,
    budget: Annotated[float | None, typer.Option(help="seconds to wait for compilations; default: no limit")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Makes a dispatch table: kernels chosen ahead of time.

    The calls are those of a model, of --operation, or of a recorded workload; the table has the kernel for each bucket
    of sizes, or for each class of recorded calls. `table:` in layerzero.yaml loads it.

    With --check nothing is written: the table of a lock is made again, with the calls, sizes and settings of the lock,
    and its kernels are compiled first if they were for the lock. Exit code 1 if a choice or a version differs.
    """
    check_device(device)
    sources = sum(given is not None and given != [] for given in (operation, operations, model, workload, check))
    if sources != 1:
        raise InvalidRequestError(
            "solve", HOW, f"{sources} of --operation, --operations, --model, --workload and --check"
        )
    if workload is not None and bucket:
        raise InvalidRequestError(
            "--bucket", "none with --workload: sizes are those that were recorded", repr(bucket[0])
        )
    if budget is not None and not compile_jit and check is None:
        raise InvalidRequestError("--budget", "--compile-jit with it", "--budget alone")
    progress = note(quiet)
    if check is not None:
        given = {
            "--bucket": bucket,
            "--output": output,
            "--lock": lock,
            "--numerics": numerics,
            "--plan-mode": plan_mode,
        }
        given |= {"--tp-invariant": tp_invariant, "--capturing": capturing, "--compile-jit": compile_jit}
        for name in (name for name, value in given.items() if value):
            why = "nothing is written" if name in ("--output", "--lock") else "the lock has it"
            raise InvalidRequestError(name, f"none with --check: {why}", "both")
        raise typer.Exit(_check(check, device, budget, progress, json))
    from layerzero.tables.lock import lock_of, model_at, write_lock
    from layerzero.tables.solve import solve

    what: Any = operation
    if operations is not None:
        what = _lines(operations)
    made_of = {"operations": what}
    if model is not None:
        made_of, what = {"model": str(model)}, model_at(model)
    elif workload is not None:
        made_of, what = {"workload": str(workload)}, workload
    source = model or workload
    table = solve(
        what,
        sizes_by_name(bucket, "--bucket"),
        device=device,
        model_id=source.name if source is not None else None,
        numerics=numerics,
        tp_invariant=tp_invariant,
        capturing=capturing,
        plan_mode=plan_mode or None,
        compile_jit=compile_jit,
        budget_s=budget,
        progress=lambda text: progress(f"solving {text}"),
    )
    if output is not None:
        table.save(output)
    if lock is not None:
        write_lock(lock, lock_of(table, made_of))
    if json:
        print_json({**table.document, "entries": len(table.entries())})
    else:
        print(table)


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text().splitlines() if line.strip() and line.strip()[0] != "#"]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError("--operations", "a readable file of calls", f"{path} ({error})") from error


def _check(path: Path, device: str | None, budget: float | None, progress: Any, json: bool) -> int:
    from layerzero.tables.lock import compare, lock_of, read_lock, solve_again

    before = read_lock(path)
    if budget is not None and not before.get("compile_jit"):
        wanted = "none with --check of a lock that was made without --compile-jit"
        raise InvalidRequestError("--budget", wanted, f"{budget:g}", "leave it out: nothing is compiled first")
    options = {"device": device, "budget_s": budget}
    table = solve_again(before, str(path), **options, progress=lambda text: progress(f"solving {text}"))
    found = compare(before, lock_of(table))
    same = not any(found[key] for key in ("versions", "choices", "only_before", "only_after"))
    report = {"before": str(path), "after": "this installation", **found, "ok": same}
    if json:
        print_json(report)
    else:
        print_differences(report)
    return 0 if same else 1


def print_differences(report: dict[str, Any]) -> None:
    """Prints what `layerzero diff` and `solve --check` found, one difference a line."""
    from layerzero.tables.lock import change_text

    for one in report["versions"]:
        print(f"{one['name']}: {one['before']} -> {one['after']}")
    for one in report["choices"]:
        print(change_text(one))
    for name in report["only_before"]:
        print(f"{name}: only before")
    for name in report["only_after"]:
        print(f"{name}: only after")
    print(
        f"{report['before']} and {report['after']}: {len(report['choices'])} of {report['calls']} choices changed, "
        f"{len(report['versions'])} versions or settings"
    )
