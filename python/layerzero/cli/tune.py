"""layerzero tune."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from layerzero.cli._call import operation_names, takes_call
from layerzero.cli._output import Json, finish, print_table
from layerzero.errors import InvalidRequestError
from layerzero.host.optional import need
from layerzero.inspection.call_text import read_call

Target: Any = typer.Argument(
    help="an operation, with its call as for `layerzero explain` or with its shipped cases; a workload's file; all: every "
    "shipped case",
    autocompletion=operation_names,
)


def command(
    context: typer.Context,
    target: Annotated[str | None, Target] = None,
    model: Annotated[
        str | None, typer.Option(help="tune the calls of one answer of this model; a model as for `layerzero generate`")
    ] = None,
    tokens: Annotated[int, typer.Option(help="with --model: tokens of the answer", min=1)] = 8,
    prompt: Annotated[str, typer.Option(help="with --model: the question")] = "Why is the sky blue?",
    device: Annotated[str | None, typer.Option(help="cpu or cuda:N; default: the device of the calls")] = None,
    budget: Annotated[float | None, typer.Option(help="time limit in seconds: no call begins after it", min=1)] = None,
    memory_mb: Annotated[int, typer.Option(help="MiB that the measuring process may use; 0: no limit", min=0)] = 0,
    samples: Annotated[
        int | None, typer.Option(help="rounds in which the finalists are timed; default: perfdb.tune_samples", min=6)
    ] = None,
    shard: Annotated[
        str, typer.Option(help="i/n: tune only the i-th of n parts of the calls, to use n devices or machines")
    ] = "1/1",
    variants: Annotated[
        int, typer.Option(help="find the K kernels of each operation that together are closest to the fastest", min=0)
    ] = 0,
    imports: Annotated[list[str] | None, typer.Option("--import", help="a module that registers kernels")] = None,
    again: Annotated[bool, typer.Option("--again", help="measure calls again that the database already has")] = False,
    ignore_environment: Annotated[
        bool,
        typer.Option("--ignore-environment", help="use the times even if the machine was hot or busy with other work"),
    ] = False,
    json: Json = False,
) -> None:
    """Measures the kernels of calls; the fastest are used.

    A kernel replaces the default only if its gain is larger than the noise. Kernels run in another process. Each result
    is in the performance database at once: after an interruption the same command continues. Exit code 1 if some calls
    could not be measured, or if the budget ended first.
    """
    need("torch", what="tune")
    from layerzero.tuning import session

    if (target is None) == (model is None):
        raise InvalidRequestError(
            "tune", "an operation, a workload's file or --model", "none" if model is None else "both"
        )
    shard_of = _shard(shard)
    options: dict[str, Any] = {"budget_s": budget, "memory_mb": memory_mb, "samples": samples, "shard": shard_of}
    options |= {"variants": variants, "imports": tuple(imports or ()), "again": again, "device": device}
    options["ignore_environment"] = ignore_environment
    what, call = _target(target, model, tokens, prompt, context.args, device)
    with _progress() as on_step:
        report = session.tune(what, **options, **call, on_step=on_step).to_dict()
    finish(report, json, _print)


def _shard(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not slash or not part.isdecimal() or not parts.isdecimal() or not 1 <= int(part) <= int(parts):
        raise InvalidRequestError("--shard", "i/n with 1 <= i <= n, as 1/4", repr(text))
    return int(part), int(parts)


def _target(
    target: str | None, model: str | None, tokens: int, prompt: str, words: list[str], device: str | None
) -> tuple[Any, dict[str, Any]]:
    from layerzero.tuning import session, workload

    if model is not None:
        return _of_model(model, tokens, prompt), {}
    assert target is not None
    if target == "all":
        from layerzero.bench.operations import all_cases, cases_folder

        on_gpu = device not in (None, "cpu")
        cases = all_cases(None, cases_folder() / "cuda" if on_gpu else None)
        calls = [workload.Entry(c.operation, c.line, device=device or "cpu", drawn=True) for c in cases]
        return workload.Workload(calls), {}
    if session._is_file(target) or Path(target).is_file():
        return Path(target), {}
    return (target, read_call(target, words)[1]) if words else (target, {})


def _of_model(model: str, tokens: int, prompt: str) -> Any:
    """Returns the workload of one answer of a model."""
    need("torch", "transformers", what="tune --model")
    import layerzero as lz
    from layerzero.models import Session, load

    loaded, tokenizer = load(model, "bf16")
    lz.kernelize(loaded)
    answering = Session(loaded, tokenizer)
    ids = answering.chat_ids([{"role": "user", "content": prompt}])
    with lz.record() as recording:
        answering.generate([ids], tokens)
    return recording.workload


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Any], None]]:
    """Yields on_step: a bar on standard error with the time that is left, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("tune {task.completed:.0f}/{task.total:.0f}"), BarColumn(), TimeElapsedColumn())
    shown = TextColumn("{task.fields[left]} left  {task.fields[call]}")
    with Progress(*columns, shown, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("tune", total=1, left="?", call="")

        def on_step(step: Any) -> None:
            left = "?" if step.left_s is None else f"{step.left_s:.0f} s"
            bars.update(task, completed=step.done, total=step.total, left=left, call=step.call[:60])

        yield on_step


def _print(report: dict[str, Any]) -> None:
    rows = []
    for r in report["results"]:
        if not r["kernels"]:
            continue
        fastest = r["kernels"][0]
        gain = f"{r['gain']:.1%} ({r['gain_low']:.1%} to {r['gain_high']:.1%})" if r["winner"] != r["default"] else "-"
        mode = f"{r['execution']}, {r['cache_state']}"
        rows.append([r["name"], r["line"], mode, r["winner"], gain, f"{r['confidence']:.3f}", f"{fastest['us']:.1f}"])
    columns = ["operation", "call", "as", "winner", "faster than the default", "confidence", "us of the fastest"]
    if rows:
        print_table(f"Tuned on {report['device_id']}", columns, rows, wraps=("call",))
    done = f"{report['measured']} calls measured, {report['known']} known before, in {report['seconds']:.0f} s"
    print(f"{done}: {report['winners']} modes of calls have another kernel than their default")
    if gain := report["expected_gain"]:
        print(f"expected: {gain['share']:.1%} less time in these calls ({gain['low']:.1%} to {gain['high']:.1%})")
    for one in report.get("variants", ()):
        kernels = ", ".join(one["kernels"])
        print(f"{one['operation']}: {kernels} of {one['of']} kernels lose {one['loss']:.2%} on average")
    for kernel, how in report["crashed"].items():
        print(f"left out: {kernel}: {how}")
    for call, why in report["failed"].items():
        print(f"untuned: {call}: {why}")
    for one in report["untuned"]:
        if f"{one['name']} {one['call']}" not in report["failed"]:
            print(f"untuned: {one['name']} {one['call']}: {one['state']}")
    if report["warning"]:
        print(f"these times are hints: the machine was {report['warning']}; --ignore-environment lets them decide")
    if "out_of_time" in report:
        print(f"the budget of {report['budget_s']:g} s has ended; the same command goes on")
    print(f"{report['records']} records in {report['database']}")


takes_call(command)
